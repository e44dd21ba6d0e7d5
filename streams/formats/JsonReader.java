package weft;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.StreamReadConstraints;
import com.fasterxml.jackson.core.exc.StreamConstraintsException;
import com.fasterxml.jackson.core.json.JsonReadFeature;
import java.io.IOException;
import java.io.Serializable;
import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.regex.Pattern;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.json.JSONOptions;
import org.apache.spark.sql.catalyst.json.JacksonParser;
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Function1;
import scala.collection.immutable.Map$;
import scala.collection.immutable.Nil$;
import scala.runtime.AbstractFunction1;

/**
 * Reads messages that are exactly one JSON value: bytes to a row of the value and, if there is none, the reason.
 *
 * Spark's reader of columns (from_json) reads characters instead of bytes. If a string is declared, it formats numbers
 * and objects again, from doubles; it ignores anything after the first value; it replaces half of a surrogate pair by a
 * question mark; and it does not report which field is wrong or which limit was exceeded. This class parses objects,
 * arrays and maps itself, keeps the characters of the message, and leaves times and binary values to Spark.
 *
 * Spark's compiler (Janino) compiles this file, see weft.streams.spark.java_classes: no lambdas, and no type arguments.
 */
public final class JsonReader extends AbstractFunction1 implements Serializable {
    private static final long serialVersionUID = 1L;
    private static final Pattern NUMBER = Pattern.compile("-?[0-9]{1,1000}(\\.[0-9]{1,1000})?([eE][+-]?[0-9]{1,9})?");
    private static final Pattern DAY = Pattern.compile("[+-]?[0-9]+(-[0-9]+(-[0-9]+)?)?");
    private static final Pattern BELOW_MICROSECONDS = Pattern.compile("\\.[0-9]{6}[0-9]*[1-9]");
    private static final long MAX_SECONDS = Long.MAX_VALUE / 1000000L;
    private static final long YEAR_2000_MICROS = 946_684_800_000_000L;
    private static final long YEAR_2100_MICROS = 4_102_444_800_000_000L;

    private final DataType kind;
    private final boolean isKey;
    private final HashSet exact;
    private final String zone;
    private final String notUtf8;
    private final String notOneValue;
    private transient JsonFactory factory;
    private transient JacksonParser spark;
    private transient Value root;

    /**
     * @param kind type of the value. A struct must be an object.
     * @param isKey whether the struct is the key of a message: see Key.
     * @param exact names of fields whose values must not be rounded: a number with more digits than the type, or a time
     *     with fractions of microseconds, does not fit.
     * @param zone time zone of times without one.
     * @param notUtf8 the reason for bytes that are not UTF-8.
     * @param notOneValue the reason for a text that is not one JSON value, or for a struct not one object.
     */
    public JsonReader(
        DataType kind, boolean isKey, List exact, String zone, String notUtf8, String notOneValue) {
        this.kind = kind;
        this.isKey = isKey;
        this.exact = new HashSet(exact);
        this.zone = zone;
        this.notUtf8 = notUtf8;
        this.notOneValue = notOneValue;
    }

    @Override
    public String toString() {
        return "read_json";
    }

    @Override
    public Object apply(Object message) {
        byte[] text = (byte[]) message;
        if (root == null) {
            prepare();
        }
        if (!UTF8String.fromBytes(text).isValid()) {
            return row(null, notUtf8);
        }
        if (root instanceof Key && ((Key) root).isPlainText(text)) {
            return row(new GenericInternalRow(new Object[] {UTF8String.fromBytes(text)}), null);
        }
        try {
            JsonParser parser = factory.createParser(text);
            try {
                return read(parser, text);
            } finally {
                parser.close();
            }
        } catch (StreamConstraintsException limit) {
            String what = limit.getOriginalMessage();
            int source = what.indexOf(", from");
            String shown = source < 0 ? what : what.substring(0, source) + ")";
            return row(null, "the value exceeds a limit of JSON: " + shown);
        } catch (IOException malformed) {
            return row(null, notOneValue);
        }
    }

    private InternalRow read(JsonParser parser, byte[] text) throws IOException {
        JsonToken first = parser.nextToken();
        if (first == null || (root instanceof Struct && first != JsonToken.START_OBJECT)) {
            return row(null, notOneValue);
        }
        Object value = null;
        String reason = null;
        try {
            value = root.read(parser, text);
        } catch (Mismatch mismatch) {
            reason = mismatch.reason();
            while (!parser.getParsingContext().inRoot()) {
                parser.nextToken();
            }
        }
        return parser.nextToken() == null ? row(value, reason) : row(null, notOneValue);
    }

    private static InternalRow row(Object value, String reason) {
        return new GenericInternalRow(new Object[] {reason == null ? value : null, UTF8String.fromString(reason)});
    }

    private void prepare() {
        // A text is never longer than its message, which is in memory. The other limits are those of Jackson.
        factory = JsonFactory.builder()
            .disable(JsonFactory.Feature.CHARSET_DETECTION)
            .disable(JsonFactory.Feature.INTERN_FIELD_NAMES)
            .enable(JsonReadFeature.ALLOW_NON_NUMERIC_NUMBERS)
            .streamReadConstraints(StreamReadConstraints.builder().maxStringLength(Integer.MAX_VALUE).build())
            .build();
        JSONOptions options = new JSONOptions(Map$.MODULE$.empty(), zone, "");
        spark = new JacksonParser(kind, options, false, Nil$.MODULE$);
        root = isKey ? new Key((StructType) kind) : value(kind, false);
    }

    private Value value(DataType type, boolean isExact) {
        if (type instanceof StructType) {
            return struct((StructType) type, isExact);
        }
        if (type instanceof ArrayType) {
            return new Array((ArrayType) type, isExact);
        }
        if (type instanceof MapType) {
            return new Pairs((MapType) type, isExact);
        }
        if (type instanceof StringType) {
            return new Text(type);
        }
        if (type instanceof DecimalType) {
            return new Amount((DecimalType) type, isExact);
        }
        if (type instanceof DoubleType || type instanceof FloatType) {
            return new Real(type, spark.makeConverter(type));
        }
        if (type instanceof LongType || type instanceof IntegerType || type instanceof ShortType
            || type instanceof ByteType) {
            return new Whole(type);
        }
        return new Other(type, spark.makeConverter(type), isExact);
    }

    /** A value does not fit its type; the path is added while the exception is passed on. */
    private static final class Mismatch extends RuntimeException {
        private final String what;
        private String path = "";

        Mismatch(String what) {
            super(what, null, false, false);
            this.what = what;
        }

        Mismatch within(String step) {
            path = path.isEmpty() || path.startsWith("[]") || path.startsWith("{}") ? step + path : step + "." + path;
            return this;
        }

        String reason() {
            return path.isEmpty() ? "the value " + what : "field '" + path + "' " + what;
        }
    }

    /** Reads the values of one type. */
    private abstract static class Value {
        final DataType type;

        Value(DataType type) {
            this.type = type;
        }

        /**
         * Reads the value that begins with the current token; afterwards its last token is the current one.
         *
         * @param text all bytes of the message.
         */
        Object read(JsonParser parser, byte[] text) throws IOException {
            return parser.currentToken() == JsonToken.VALUE_NULL ? null : convert(parser, text);
        }

        abstract Object convert(JsonParser parser, byte[] text) throws IOException;

        Mismatch mismatch() {
            return new Mismatch("is not of type " + type.simpleString());
        }

        void expect(JsonParser parser, JsonToken token) throws IOException {
            if (parser.currentToken() != token) {
                throw mismatch();
            }
        }

        static UTF8String text(String characters) {
            for (int i = 0; i < characters.length(); i++) {
                char one = characters.charAt(i);
                if (Character.isSurrogate(one)) {
                    boolean isPair = Character.isHighSurrogate(one) && i + 1 < characters.length()
                        && Character.isLowSurrogate(characters.charAt(i + 1));
                    if (!isPair) {
                        throw new Mismatch("has half of a surrogate pair, which is not a character");
                    }
                    i++;
                }
            }
            return UTF8String.fromString(characters);
        }
    }

    private Struct struct(StructType type, boolean isExact) {
        StructField[] fields = type.fields();
        Value[] values = new Value[fields.length];
        for (int i = 0; i < fields.length; i++) {
            values[i] = value(fields[i].dataType(), isExact || (type == kind && exact.contains(fields[i].name())));
        }
        return new Struct(type, type.fieldNames(), values);
    }

    /** An object. Members that are not declared are skipped; a declared one that is missing is null. */
    private static final class Struct extends Value {
        private final Value[] values;
        private final HashMap places = new HashMap();

        Struct(DataType type, String[] names, Value[] values) {
            super(type);
            this.values = values;
            for (int i = 0; i < names.length; i++) {
                places.put(names[i], Integer.valueOf(i));
            }
        }

        @Override
        Object convert(JsonParser parser, byte[] text) throws IOException {
            expect(parser, JsonToken.START_OBJECT);
            Object[] row = new Object[values.length];
            boolean[] isPresent = new boolean[values.length];
            for (String name = parser.nextFieldName(); name != null; name = parser.nextFieldName()) {
                parser.nextToken();
                Integer place = (Integer) places.get(name);
                if (place == null) {
                    parser.skipChildren();
                    continue;
                }
                int i = place.intValue();
                try {
                    if (isPresent[i]) {
                        throw new Mismatch("is there twice");
                    }
                    isPresent[i] = true;
                    row[i] = values[i].read(parser, text);
                } catch (Mismatch mismatch) {
                    throw mismatch.within(name);
                }
            }
            return new GenericInternalRow(row);
        }
    }

    private final class Array extends Value {
        private final Value element;

        Array(ArrayType type, boolean isExact) {
            super(type);
            element = value(type.elementType(), isExact);
        }

        @Override
        Object convert(JsonParser parser, byte[] text) throws IOException {
            expect(parser, JsonToken.START_ARRAY);
            ArrayList elements = new ArrayList();
            while (parser.nextToken() != JsonToken.END_ARRAY) {
                try {
                    elements.add(element.read(parser, text));
                } catch (Mismatch mismatch) {
                    throw mismatch.within("[]");
                }
            }
            return new GenericArrayData(elements.toArray());
        }
    }

    private final class Pairs extends Value {
        private final Value item;

        Pairs(MapType type, boolean isExact) {
            super(type);
            item = value(type.valueType(), isExact);
        }

        @Override
        Object convert(JsonParser parser, byte[] text) throws IOException {
            expect(parser, JsonToken.START_OBJECT);
            ArrayList keys = new ArrayList();
            ArrayList items = new ArrayList();
            HashSet known = new HashSet();
            for (String name = parser.nextFieldName(); name != null; name = parser.nextFieldName()) {
                parser.nextToken();
                if (!known.add(name)) {
                    throw new Mismatch("has a key twice");
                }
                keys.add(text(name));
                try {
                    items.add(item.read(parser, text));
                } catch (Mismatch mismatch) {
                    throw mismatch.within("{}");
                }
            }
            return new ArrayBasedMapData(new GenericArrayData(keys.toArray()), new GenericArrayData(items.toArray()));
        }
    }

    /** A string, or the characters in the message of any other value. */
    private static final class Text extends Value {
        Text(DataType type) {
            super(type);
        }

        @Override
        Object convert(JsonParser parser, byte[] text) throws IOException {
            if (!parser.currentToken().isStructStart()) {
                return text(parser.getText());
            }
            int start = (int) parser.currentTokenLocation().getByteOffset();
            parser.skipChildren();
            int end = (int) parser.currentLocation().getByteOffset();
            return UTF8String.fromBytes(text, start, end - start);
        }
    }

    private static final class Whole extends Value {
        private final long most;

        Whole(DataType type) {
            super(type);
            most = Long.MAX_VALUE >>> (64 - 8 * type.defaultSize());
        }

        @Override
        Object convert(JsonParser parser, byte[] text) throws IOException {
            expect(parser, JsonToken.VALUE_NUMBER_INT);
            if (parser.getNumberType() == JsonParser.NumberType.BIG_INTEGER) {
                throw mismatch();
            }
            long number = parser.getLongValue();
            if (number > most || number < -most - 1) {
                throw mismatch();
            }
            if (type instanceof LongType) {
                return Long.valueOf(number);
            }
            if (type instanceof IntegerType) {
                return Integer.valueOf((int) number);
            }
            return type instanceof ShortType ? (Object) Short.valueOf((short) number) : Byte.valueOf((byte) number);
        }
    }

    private static final class Real extends Value {
        private final Function1 spark;

        Real(DataType type, Function1 spark) {
            super(type);
            this.spark = spark;
        }

        /** A number out of the range of the type, such as 1E400, is refused. NaN and infinities are texts. */
        @Override
        Object convert(JsonParser parser, byte[] text) throws IOException {
            if (!parser.currentToken().isNumeric()) {
                return other(spark, parser, this);
            }
            double number = type instanceof FloatType ? parser.getFloatValue() : parser.getDoubleValue();
            if (Double.isInfinite(number) && !parser.isNaN()) {
                throw mismatch();
            }
            return type instanceof FloatType ? (Object) Float.valueOf((float) number) : Double.valueOf(number);
        }
    }

    private static final class Amount extends Value {
        private final int precision;
        private final int scale;
        private final boolean isExact;

        Amount(DecimalType type, boolean isExact) {
            super(type);
            this.isExact = isExact;
            precision = type.precision();
            scale = type.scale();
        }

        /** Rounds digits beyond the scale of the type, unless the value is exact. The exponent is checked first. */
        @Override
        Object convert(JsonParser parser, byte[] text) throws IOException {
            JsonToken token = parser.currentToken();
            boolean isText = token == JsonToken.VALUE_STRING;
            if ((!isText && !token.isNumeric()) || !NUMBER.matcher(parser.getText()).matches()) {
                throw mismatch();
            }
            BigDecimal number = new BigDecimal(parser.getText());
            long digitsBefore = (long) number.precision() - number.scale();
            if (number.signum() != 0 && digitsBefore > precision - scale) {
                throw mismatch();
            }
            BigDecimal fitted = number.signum() == 0 || digitsBefore < -scale
                ? BigDecimal.valueOf(0, scale)
                : number.setScale(scale, java.math.RoundingMode.HALF_UP);
            if (fitted.precision() > precision || (isExact && fitted.compareTo(number) != 0)) {
                throw mismatch();
            }
            return Decimal.apply(fitted, precision, scale);
        }
    }

    /** Times, binary values and other types, which Spark's reader converts. */
    private static final class Other extends Value {
        private final Function1 spark;
        private final boolean isExact;

        Other(DataType type, Function1 spark, boolean isExact) {
            super(type);
            this.isExact = isExact;
            this.spark = spark;
        }

        @Override
        Object convert(JsonParser parser, byte[] text) throws IOException {
            JsonToken token = parser.currentToken();
            boolean isText = token == JsonToken.VALUE_STRING;
            if (type instanceof DateType && isText && !DAY.matcher(parser.getText()).matches()) {
                throw mismatch(); // Spark would ignore a time of day, and anything else that follows
            }
            if (type instanceof TimestampType || type instanceof TimestampNTZType) {
                if (token == JsonToken.VALUE_NUMBER_INT && (parser.getNumberType() == JsonParser.NumberType.BIG_INTEGER
                    || parser.getLongValue() > MAX_SECONDS || parser.getLongValue() < -MAX_SECONDS)) {
                    // Spark would multiply it, and let the result overflow.
                    boolean isLong = parser.getNumberType() != JsonParser.NumberType.BIG_INTEGER;
                    if (!isLong || parser.getLongValue() < YEAR_2000_MICROS || parser.getLongValue() > YEAR_2100_MICROS) {
                        throw mismatch();
                    }
                    throw new Mismatch("is not of type " + type.simpleString() + ": the number looks like microseconds, "
                        + "and a number is read as seconds; in a pipeline declare the field bigint in schema, and select "
                        + "timestamp_micros(FIELD)");
                }
                if (isExact && isText && BELOW_MICROSECONDS.matcher(parser.getText()).find()) {
                    throw mismatch();
                }
            }
            return other(spark, parser, this);
        }
    }

    private static Object other(Function1 spark, JsonParser parser, Value value) {
        Object converted;
        try {
            converted = spark.apply(parser);
        } catch (RuntimeException wrong) {
            throw value.mismatch();
        }
        if (converted == null) {
            throw value.mismatch();
        }
        return converted;
    }

    /**
     * The key of a message: an object, or with exactly one field also the value of that field; either may be the
     * payload of Kafka Connect's envelope. A key that begins with neither { nor a quotation mark is taken as a string.
     */
    private final class Key extends Value {
        private final Struct fields;
        private final Struct enveloped;
        private final Value only;

        Key(StructType type) {
            super(type);
            fields = struct(type, true);
            only = fields.values.length == 1 ? fields.values[0] : null;
            boolean isAmbiguous = fields.places.containsKey("schema") || fields.places.containsKey("payload");
            String[] names = {"schema", "payload"};
            enveloped = isAmbiguous ? null : new Struct(type, names, new Value[] {new Raw(), new Raw()});
        }

        boolean isPlainText(byte[] text) {
            int start = 0;
            while (start < text.length && (text[start] == ' ' || (text[start] >= 9 && text[start] <= 13))) {
                start++;
            }
            boolean isObject = start < text.length && text[start] == '{';
            return only instanceof Text && !isObject && (text.length == 0 || text[0] != '"');
        }

        @Override
        Object convert(JsonParser parser, byte[] text) throws IOException {
            if (parser.currentToken() == JsonToken.START_OBJECT && enveloped != null) {
                Object[] parts = enveloped(text);
                if (parts[0] != null) {
                    while (!parser.getParsingContext().inRoot()) {
                        parser.nextToken();
                    }
                    if (parts[1] == null) {
                        return null;
                    }
                    byte[] payload = (byte[]) parts[1];
                    JsonParser inner = factory.createParser(payload);
                    inner.nextToken();
                    return plain(inner, payload);
                }
            }
            return plain(parser, text);
        }

        /** Returns the characters of schema and payload; null for a member that is missing or null. */
        private Object[] enveloped(byte[] text) throws IOException {
            JsonParser parser = factory.createParser(text);
            parser.nextToken();
            return (Object[]) ((GenericInternalRow) enveloped.convert(parser, text)).values();
        }

        private Object plain(JsonParser parser, byte[] text) throws IOException {
            if (parser.currentToken() == JsonToken.START_OBJECT || only == null) {
                return fields.convert(parser, text);
            }
            Object value = only.read(parser, text);
            return value == null ? null : new GenericInternalRow(new Object[] {value});
        }
    }

    /** The bytes of any value. */
    private static final class Raw extends Value {
        Raw() {
            super(null);
        }

        @Override
        Object convert(JsonParser parser, byte[] text) throws IOException {
            int start = (int) parser.currentTokenLocation().getByteOffset();
            parser.finishToken();
            parser.skipChildren();
            return java.util.Arrays.copyOfRange(text, start, (int) parser.currentLocation().getByteOffset());
        }
    }
}
