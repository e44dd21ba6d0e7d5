package weft;

import java.util.function.Consumer;
import org.apache.spark.sql.classic.SparkSession;
import scala.Option;

/** A session for Spark's Thrift server, which makes a new session of it for each connection. */
public class ConnectionSessions extends SparkSession {
    private final Consumer<Object> prepare;

    /**
     * @param shared A session of the application
     * @param prepare Gets each new session before its connection uses it
     */
    public ConnectionSessions(SparkSession shared, Consumer<Object> prepare) {
        super(
            shared.sparkContext(),
            Option.apply(shared.sharedState()),
            Option.empty(),
            shared.extensions(),
            shared.initialSessionOptions(),
            scala.collection.immutable.Map$.MODULE$.empty());
        this.prepare = prepare;
    }

    public SparkSession newSession() {
        SparkSession made = super.newSession();
        prepare.accept(made);
        return made;
    }
}
