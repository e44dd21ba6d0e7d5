package weft;

import org.apache.arrow.vector.complex.StructVector;
import org.apache.spark.TaskContext;
import org.apache.spark.api.python.ChainedPythonFunctions;
import org.apache.spark.api.python.PythonEvalType;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.NamedExpression$;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.PythonCustomMetric$;
import org.apache.spark.sql.execution.datasources.v2.python.PythonInputPartition;
import org.apache.spark.sql.execution.datasources.v2.python.PythonPartitionReaderFactory;
import org.apache.spark.sql.execution.datasources.v2.python.UserDefinedPythonDataSource;
import org.apache.spark.sql.execution.python.ArrowPythonRunner;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Option;
import scala.Tuple2;
import scala.collection.Iterator;
import scala.collection.Iterator$;
import scala.collection.immutable.$colon$colon;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Seq;

/**
 * A scan of a Python data source that passes its Arrow batches to Spark unchanged, instead of row by row.
 *
 * Spark's own reader of a Python data source (MapInBatchEvaluatorFactory) copies each row out of the batches before a
 * query sees it. Columnar batches are read by generated code instead, like batches of Parquet files. Partitions, the
 * pickled function that reads them, and the worker that runs it are Spark's own.
 *
 * Spark's compiler (Janino) compiles this file, see columnar_tasks.py. It supports neither lambdas nor the bridge
 * methods of generic interfaces, so this file uses raw types.
 */
public final class ColumnarTasks implements Batch {
    private final Batch tasks;

    /** @param tasks the batch of Spark's scan of a Python data source */
    public ColumnarTasks(Batch tasks) {
        this.tasks = tasks;
    }

    @Override
    public InputPartition[] planInputPartitions() {
        return tasks.planInputPartitions();
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new Factory((PythonPartitionReaderFactory) tasks.createReaderFactory());
    }

    // Private fields of Spark's factory, which are public for the JVM under longer names.

    private static UserDefinedPythonDataSource source(PythonPartitionReaderFactory rows) {
        return rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$source;
    }

    private static byte[] function(PythonPartitionReaderFactory rows) {
        return rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$pickledReadFunc;
    }

    private static Option artifacts(PythonPartitionReaderFactory rows) {
        return rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$jobArtifactUUID;
    }

    private static Option session(PythonPartitionReaderFactory rows) {
        return rows.org$apache$spark$sql$execution$datasources$v2$python$PythonPartitionReaderFactory$$sessionUUID;
    }

    /** Sent to executors. */
    private static final class Factory implements PartitionReaderFactory {
        private static final long serialVersionUID = 1L;

        private final PythonPartitionReaderFactory rows;

        Factory(PythonPartitionReaderFactory rows) {
            this.rows = rows;
        }

        @Override
        public boolean supportColumnarReads(InputPartition partition) {
            return true;
        }

        @Override
        public PartitionReader createReader(InputPartition partition) {
            return rows.createReader(partition);
        }

        @Override
        public PartitionReader createColumnarReader(InputPartition partition) {
            SQLConf conf = SQLConf.get();
            PythonFunction function = source(rows).createPythonFunction(function(rows));
            Long id = Long.valueOf(NamedExpression$.MODULE$.newExprId().id());
            ArrowPythonRunner runner = new ArrowPythonRunner(
                list(new Tuple2(new ChainedPythonFunctions(list(function)), id)),
                PythonEvalType.SQL_MAP_ARROW_ITER_UDF(),
                new int[][] {{0}},
                new StructType().add("struct", UserDefinedPythonDataSource.readInputSchema()),
                conf.sessionLocalTimeZone(),
                conf.arrowUseLargeVarTypes(),
                ArrowPythonRunner.getPythonRunnerConfMap(conf),
                PythonCustomMetric$.MODULE$.pythonMetrics(), // a view reports no metrics of workers
                artifacts(rows),
                session(rows));
            Object task = row(row(((PythonInputPartition) partition).pickedPartition()));
            Iterator input = Iterator$.MODULE$.single(Iterator$.MODULE$.single(task));
            TaskContext context = TaskContext.get();
            return new Reader(runner.compute(input, context.partitionId(), context));
        }

        private static InternalRow row(Object value) {
            return new GenericInternalRow(new Object[] {value});
        }

        private static Seq list(Object element) {
            return new $colon$colon(element, Nil$.MODULE$);
        }
    }

    /** The batches of one partition. The runner stops the worker and frees memory when the task ends. */
    private static final class Reader implements PartitionReader {
        private final Iterator batches;

        Reader(Iterator batches) {
            this.batches = batches;
        }

        @Override
        public boolean next() {
            return batches.hasNext();
        }

        /** The columns are the fields of the only column that a worker returns. */
        @Override
        public Object get() {
            ColumnarBatch batch = (ColumnarBatch) batches.next();
            ArrowColumnVector rows = (ArrowColumnVector) batch.column(0);
            ColumnVector[] columns = new ColumnVector[((StructVector) rows.getValueVector()).size()];
            for (int i = 0; i < columns.length; i++) {
                columns[i] = new LentColumn(rows.getChild(i));
            }
            return new ColumnarBatch(columns, batch.numRows());
        }

        @Override
        public void close() {}
    }

    /**
     * A column that the runner owns: it loads the next batch into the same vector, and closes the vector at the end.
     *
     * It is not an ArrowColumnVector, because Spark keeps such columns beyond the next batch if a Python function is
     * called (ColumnarArrowEvalPythonEvaluatorFactory). From other columns, such as columns of Parquet files, Spark
     * copies the rows that it keeps.
     */
    private static final class LentColumn extends ColumnVector {
        private final ColumnVector column;

        LentColumn(ColumnVector column) {
            super(column.dataType());
            this.column = column;
        }

        @Override
        public void close() {}

        @Override
        public void closeIfFreeable() {}

        @Override
        public boolean hasNull() {
            return column.hasNull();
        }

        @Override
        public int numNulls() {
            return column.numNulls();
        }

        @Override
        public boolean isNullAt(int row) {
            return column.isNullAt(row);
        }

        @Override
        public boolean getBoolean(int row) {
            return column.getBoolean(row);
        }

        @Override
        public byte getByte(int row) {
            return column.getByte(row);
        }

        @Override
        public short getShort(int row) {
            return column.getShort(row);
        }

        @Override
        public int getInt(int row) {
            return column.getInt(row);
        }

        @Override
        public long getLong(int row) {
            return column.getLong(row);
        }

        @Override
        public float getFloat(int row) {
            return column.getFloat(row);
        }

        @Override
        public double getDouble(int row) {
            return column.getDouble(row);
        }

        @Override
        public Decimal getDecimal(int row, int precision, int scale) {
            return column.getDecimal(row, precision, scale);
        }

        @Override
        public UTF8String getUTF8String(int row) {
            return column.getUTF8String(row);
        }

        @Override
        public byte[] getBinary(int row) {
            return column.getBinary(row);
        }

        @Override
        public ColumnarArray getArray(int row) {
            return column.getArray(row);
        }

        @Override
        public ColumnarMap getMap(int row) {
            return column.getMap(row);
        }

        @Override
        public ColumnVector getChild(int ordinal) {
            return column.getChild(ordinal);
        }
    }
}
