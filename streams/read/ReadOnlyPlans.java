package weft;

import java.lang.reflect.Array;
import java.lang.reflect.Proxy;
import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.Locale;
import java.util.Set;

import org.apache.spark.sql.catalyst.analysis.ResolvedProcedure;
import org.apache.spark.sql.catalyst.analysis.UnresolvedFunction;
import org.apache.spark.sql.catalyst.analysis.UnresolvedProcedure;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.UserDefinedExpression;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.connector.catalog.CatalogPlugin;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.execution.SparkStrategy;

import scala.Product;
import scala.collection.Iterable;
import scala.collection.Iterator;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Seq;

/**
 * Checks every part of a plan of Spark: nodes, subqueries at any place, expressions, tables, catalogs.
 *
 * It is also the first strategy of the planner of a session, so that the session never executes anything else, not even
 * plans that Spark executes while it analyses a statement, or as a part of another statement.
 */
public final class ReadOnlyPlans extends SparkStrategy {

    private final Set nodes;
    private final Set functions;
    private final Set procedures;

    /**
     * All parameters are names separated by spaces.
     *
     * @param nodes       classes of allowed nodes and commands, with their packages
     * @param functions   refused functions, in lower case
     * @param procedures  allowed procedures, in lower case
     */
    public ReadOnlyPlans(String nodes, String functions, String procedures) {
        this.nodes = split(nodes);
        this.functions = split(functions);
        this.procedures = split(procedures);
    }

    /** Returns the first part of a plan that is not allowed; null if all parts are allowed. */
    public Object refused(LogicalPlan plan) {
        Set known = Collections.newSetFromMap(new IdentityHashMap());
        ArrayDeque waiting = new ArrayDeque();
        waiting.add(plan);
        while (!waiting.isEmpty()) {
            Object part = waiting.remove();
            if (!known.add(part)) {
                continue;
            }
            if (!allowed(part)) {
                return part;
            }
            if (part instanceof TreeNode) {  // a plan or an expression: others are not passed on, see `add`
                addAll(((TreeNode) part).children().iterator(), waiting);
                addAll(((TreeNode) part).innerChildren().iterator(), waiting);
            }
            if (part instanceof Product) {
                addAll(((Product) part).productIterator(), waiting);
            } else if (part instanceof Iterable) {
                addAll(((Iterable) part).iterator(), waiting);
            }
        }
        return null;
    }

    /** Plans nothing, but raises if the plan is not allowed. */
    public Seq apply(LogicalPlan plan) {
        Object part = refused(plan);
        if (part != null) {
            throw new IllegalArgumentException(
                "InvalidInput: only queries are allowed here, and this is " + part.getClass().getSimpleName());
        }
        return (Seq) (Object) Nil$.MODULE$;
    }

    private static Set split(String names) {
        return new HashSet(Arrays.asList(names.split(" ")));
    }

    private boolean allowed(Object part) {
        if (part instanceof LogicalPlan) {
            return nodes.contains(part.getClass().getName()) && isCallable(part);
        }
        if (part instanceof UnresolvedFunction) {
            return !functions.contains(((String) ((UnresolvedFunction) part).nameParts().last()).toLowerCase(Locale.ROOT));
        }
        if (part instanceof Table) {
            return isOwn(part) || isOwnChangelog(part);
        }
        if (part instanceof CatalogPlugin) {
            return isOwn(part);
        }
        return !(part instanceof UserDefinedExpression);
    }

    private boolean isCallable(Object part) {
        if (part instanceof UnresolvedProcedure) {
            return procedures.contains(((String) ((UnresolvedProcedure) part).nameParts().last()).toLowerCase(Locale.ROOT));
        }
        if (part instanceof ResolvedProcedure) {
            return procedures.contains(((ResolvedProcedure) part).ident().name().toLowerCase(Locale.ROOT));
        }
        return true;
    }

    /** Whether an object is one of weft: only objects of weft are proxies of Python objects. */
    private static boolean isOwn(Object part) {
        return Proxy.isProxyClass(part.getClass());
    }

    /** Whether a table is the one that Spark makes from changes that weft returns. */
    private static boolean isOwnChangelog(Object part) {
        return part.getClass().getName().equals("org.apache.spark.sql.execution.datasources.v2.ChangelogTable")
            && isOwn(((Product) part).productElement(0));
    }

    private static void addAll(Iterator parts, ArrayDeque waiting) {
        while (parts.hasNext()) {
            add(parts.next(), waiting);
        }
    }

    /** Adds an object that has parts, or is checked itself. Physical plans are not: their logical plans are checked. */
    private static void add(Object part, ArrayDeque waiting) {
        if (part instanceof TreeNode && !(part instanceof LogicalPlan) && !(part instanceof Expression)) {
            return;
        }
        if (part instanceof Product || part instanceof Iterable || part instanceof Table
                || part instanceof CatalogPlugin) {
            waiting.add(part);
        } else if (part instanceof Object[]) {
            for (int index = 0; index < Array.getLength(part); index++) {
                add(Array.get(part, index), waiting);
            }
        }
    }
}
