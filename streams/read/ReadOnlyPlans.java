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
 * Judges every part of a plan of Spark: nodes, subqueries wherever they are, expressions, tables, catalogs.
 *
 * It is also a strategy of the planner of a session, the first one, so that nothing else is ever executed in it: also
 * not what Spark executes while it analyses a statement, or on behalf of another one.
 */
public final class ReadOnlyPlans extends SparkStrategy {

    private final Set nodes;
    private final Set functions;
    private final Set procedures;

    /**
     * All are names with spaces between them.
     *
     * @param nodes       of the classes of the nodes and commands that are allowed, with their packages
     * @param functions   of functions that are refused, in lower case
     * @param procedures  of procedures that are allowed, in lower case
     */
    public ReadOnlyPlans(String nodes, String functions, String procedures) {
        this.nodes = split(nodes);
        this.functions = split(functions);
        this.procedures = split(procedures);
    }

    /** The first part of a plan that is not allowed; null if all are. */
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

    /** Whether it is an object of weft: those are proxies of Python objects, and nothing else is. */
    private static boolean isOwn(Object part) {
        return Proxy.isProxyClass(part.getClass());
    }

    /** Whether it is the table that Spark makes of changes that weft gives it. */
    private static boolean isOwnChangelog(Object part) {
        return part.getClass().getName().equals("org.apache.spark.sql.execution.datasources.v2.ChangelogTable")
            && isOwn(((Product) part).productElement(0));
    }

    private static void addAll(Iterator parts, ArrayDeque waiting) {
        while (parts.hasNext()) {
            add(parts.next(), waiting);
        }
    }

    /** Add what has parts, or is judged itself. Physical plans are neither: what they are made of is judged. */
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
