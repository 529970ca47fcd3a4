import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.LocalDateTime;
import java.time.ZoneId;
import java.time.ZoneOffset;
import java.util.HashMap;
import java.util.Map;
import java.util.StringJoiner;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;

/**
 * A query of Nexmark in Flink SQL: task managers of one slot each, which exchange records over TCP,
 * but in one JVM (Flink's own mini cluster); state on the heap; object reuse on.
 */
public final class Nexmark {

    private static final String COUNTS =
            "SELECT auction, COUNT(*) AS n, window_start, window_end FROM TABLE(HOP(TABLE bid,"
                    + " DESCRIPTOR(rowtime), INTERVAL '2' SECOND, INTERVAL '10' SECOND))"
                    + " GROUP BY auction, window_start, window_end";

    private static final Map<Integer, String> QUERIES =
            Map.of(
                    0, "SELECT auction, bidder, price, ms, extra, channel, url FROM bid",
                    1, "SELECT auction, bidder, 0.908E0 * price, ms, extra FROM bid",
                    2, "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0",
                    3, "SELECT p.name, p.city, p.state, a.id FROM auction a JOIN person p"
                            + " ON a.seller = p.id WHERE a.category = 10"
                            + " AND p.state IN ('OR', 'ID', 'CA')",
                    4, "SELECT category, COUNT(*), AVG(CAST(price AS DOUBLE)) FROM"
                            + " (SELECT MAX(b.price) AS price, a.category FROM auction a, bid b"
                            + " WHERE a.id = b.auction AND b.ms BETWEEN a.ms AND a.expires"
                            + " GROUP BY a.id, a.category) GROUP BY category",
                    5, "SELECT c.window_start, c.auction, c.n FROM (" + COUNTS + ") c JOIN"
                            + " (SELECT MAX(n) AS most, window_start, window_end FROM (" + COUNTS
                            + ") GROUP BY window_start, window_end) m"
                            + " ON c.window_start = m.window_start"
                            + " AND c.window_end = m.window_end AND c.n = m.most",
                    7, "SELECT b.window_start, b.auction, b.bidder, b.price, b.ms FROM "
                            + tumbled("bid") + " b JOIN (SELECT MAX(price) AS most, window_start,"
                            + " window_end FROM " + tumbled("bid")
                            + " GROUP BY window_start, window_end) m"
                            + " ON b.window_start = m.window_start"
                            + " AND b.window_end = m.window_end AND b.price = m.most",
                    8, "SELECT p.id, p.name, p.window_start FROM (SELECT id, name, window_start,"
                            + " window_end FROM " + tumbled("person")
                            + " GROUP BY id, name, window_start, window_end) p JOIN"
                            + " (SELECT seller, window_start, window_end FROM " + tumbled("auction")
                            + " GROUP BY seller, window_start, window_end) a ON p.id = a.seller"
                            + " AND p.window_start = a.window_start"
                            + " AND p.window_end = a.window_end");

    private static String tumbled(String table) {
        String source = "TABLE(TUMBLE(TABLE " + table + ", DESCRIPTOR(rowtime), INTERVAL '10' SECOND))";
        return "(SELECT * FROM " + source + ")";
    }

    public static void main(String[] words) throws Exception {
        Map<String, String> given = new HashMap<>();
        for (int i = 0; i + 1 < words.length; i += 2) {
            given.put(words[i].substring(2), words[i + 1]);
        }
        int query = Integer.parseInt(given.get("query"));
        long events = Long.parseLong(given.get("events"));
        long seed = Long.parseLong(given.get("seed"));
        int workers = Integer.parseInt(given.get("workers"));
        Path folder = Path.of(given.get("folder"));
        double intervalS = Double.parseDouble(given.get("interval-s"));

        var environment =
                StreamExecutionEnvironment.createLocalEnvironment(
                        workers, configured(workers, intervalS, folder));
        var tables = StreamTableEnvironment.create(environment);
        tables.getConfig().setLocalTimeZone(ZoneId.of("UTC"));
        var order = new Events.Order(events, workers);
        WatermarkStrategy<Long> times =
                WatermarkStrategy.<Long>forMonotonousTimestamps()
                        .withTimestampAssigner((place, none) -> Events.time(order.number(place)));
        var numbers =
                environment.fromSource(
                        new NumberSequenceSource(0, events - 1), times, "numbers");
        String sql = QUERIES.get(query);
        if (sql.contains("person")) {
            var persons = numbers.flatMap(new Events.Persons(order, seed));
            add(tables, "person", persons.returns(Events.Person.class));
        }
        if (sql.contains("auction a") || sql.contains("TABLE auction")) {
            var auctions = numbers.flatMap(new Events.Auctions(order, seed));
            add(tables, "auction", auctions.returns(Events.Auction.class));
        }
        if (sql.contains("bid")) {
            add(tables, "bid", numbers.flatMap(new Events.Bids(order, seed)).returns(Events.Bid.class));
        }
        tables.toChangelogStream(tables.sqlQuery(sql))
                .map(new Answer(query, folder.resolve("answer").toString()))
                .returns(Types.LONG)
                .sinkTo(new DiscardingSink<>());
        environment.execute("nexmark-" + query);
        System.out.printf(
                "{\"running_s\": %.4f, \"checkpoints\": %d}%n",
                (System.nanoTime() - Answer.begun) / 1e9, Answer.newest);
    }

    private static Configuration configured(int workers, double intervalS, Path folder) {
        Configuration configuration = new Configuration();
        configuration.setString("minicluster.number-of-taskmanagers", Integer.toString(workers));
        configuration.setString("taskmanager.numberOfTaskSlots", "1");
        configuration.setString("pipeline.object-reuse", "true");
        if (intervalS > 0) {
            String interval = Math.round(intervalS * 1000) + " ms";
            configuration.setString("execution.checkpointing.interval", interval);
            configuration.setString("execution.checkpointing.storage", "filesystem");
            configuration.setString(
                    "execution.checkpointing.dir", folder.resolve("checkpoints").toUri().toString());
        }
        return configuration;
    }

    private static <T> void add(StreamTableEnvironment tables, String name, DataStream<T> stream) {
        tables.createTemporaryView(
                name,
                stream,
                Schema.newBuilder()
                        .columnByMetadata("rowtime", "TIMESTAMP_LTZ(3)")
                        .watermark("rowtime", "SOURCE_WATERMARK()")
                        .build());
    }

    /** Writes answers as lines: all rows, a digest of every bid, or the newest row of each key. */
    static final class Answer extends RichMapFunction<Row, Long> implements CheckpointListener {
        /** When the last subtask opened, and the newest checkpoint; one JVM holds them all. */
        static volatile long begun;

        static volatile long newest;

        private final int query;
        private final String folder;
        private transient PrintWriter lines;
        private transient Map<Object, String> changing;
        private long rows;
        private long products;
        private long extraBytes;

        Answer(int query, String folder) {
            this.query = query;
            this.folder = folder;
        }

        @Override
        public void open(OpenContext context) throws IOException {
            int index = getRuntimeContext().getTaskInfo().getIndexOfThisSubtask();
            lines = new PrintWriter(Files.newBufferedWriter(Path.of(folder, index + ".csv")));
            changing = new HashMap<>();
            begun = System.nanoTime();
        }

        @Override
        public Long map(Row row) {
            if (query <= 1) {
                long price = query == 0 ? (long) row.getField(2) : thousandths(row.getField(2));
                long auction = (long) row.getField(0);
                long bidder = (long) row.getField(1);
                products += (auction + 31 * price) * (bidder + (long) row.getField(3));
                extraBytes += ((String) row.getField(4)).length();
            } else if (query == 4) {
                if (row.getKind() != RowKind.UPDATE_BEFORE) {
                    changing.put(row.getField(0), line(row));
                }
            } else {
                lines.println(line(row));
            }
            return rows++;
        }

        private static long thousandths(Object price) {
            return (long) Math.floor((double) price * 1000 + 0.5);
        }

        private static String line(Row row) {
            StringJoiner cells = new StringJoiner(",");
            for (int i = 0; i < row.getArity(); i++) {
                Object cell = row.getField(i);
                boolean time = cell instanceof LocalDateTime;
                cells.add(String.valueOf(time ? millis((LocalDateTime) cell) : cell));
            }
            return cells.toString();
        }

        private static long millis(LocalDateTime time) {
            return time.toInstant(ZoneOffset.UTC).toEpochMilli();
        }

        @Override
        public void notifyCheckpointComplete(long checkpoint) {
            newest = checkpoint;
        }

        @Override
        public void close() {
            changing.values().forEach(lines::println);
            if (query <= 1) {
                lines.println(rows + "," + Long.toUnsignedString(products) + "," + extraBytes);
            }
            lines.close();
        }
    }
}
