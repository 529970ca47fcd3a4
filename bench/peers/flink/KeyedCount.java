import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.state.CheckpointListener;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.connector.source.lib.NumberSequenceSource;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.memory.DataInputView;
import org.apache.flink.core.memory.DataOutputView;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.types.CopyableValue;
import org.apache.flink.util.Collector;

/**
 * The keyed count in Flink: task managers of one slot each, which exchange records over TCP, but in
 * one JVM (Flink's own mini cluster); state on the heap; object reuse on.
 *
 * <p>A timer at the end of event time gives out each key's totals, once all input was counted.
 */
public final class KeyedCount {

    public static void main(String[] words) throws Exception {
        Map<String, String> given = new HashMap<>();
        for (int i = 0; i + 1 < words.length; i += 2) {
            given.put(words[i].substring(2), words[i + 1]);
        }
        long records = Long.parseLong(given.get("records"));
        int workers = Integer.parseInt(given.get("workers"));
        double intervalS = Double.parseDouble(given.get("interval-s"));
        Path folder = Path.of(given.get("folder"));

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
        var environment =
                StreamExecutionEnvironment.createLocalEnvironment(workers, configuration);
        var make =
                new Make(
                        Long.parseLong(given.get("keys")),
                        Long.parseLong(given.get("multiplier")));
        environment
                .fromSource(
                        new NumberSequenceSource(0, records - 1),
                        WatermarkStrategy.noWatermarks(),
                        "sequence")
                .map(make)
                .returns(TypeInformation.of(Record.class))
                .keyBy(record -> record.key, Types.LONG)
                .process(new Count())
                .returns(TypeInformation.of(Totals.class))
                .map(new Answer(folder.resolve("answer").toString()))
                .returns(Types.LONG)
                .sinkTo(new DiscardingSink<>());
        environment.execute("keyed-count");
        System.out.printf(
                "{\"records\": %d, \"running_s\": %.4f, \"checkpoints\": %d}%n",
                records,
                (System.nanoTime() - Answer.begun) / 1e9,
                Answer.newest);
    }

    /** A key, a timestamp, a number and a payload; writes itself, which is Flink's cheapest way. */
    public static final class Record implements CopyableValue<Record> {
        public long key;
        public long timestamp;
        public long sequence;
        public byte[] payload = new byte[0];

        @Override
        public void write(DataOutputView out) throws IOException {
            out.writeLong(key);
            out.writeLong(timestamp);
            out.writeLong(sequence);
            out.writeInt(payload.length);
            out.write(payload);
        }

        @Override
        public void read(DataInputView in) throws IOException {
            key = in.readLong();
            timestamp = in.readLong();
            sequence = in.readLong();
            int size = in.readInt();
            if (payload.length != size) {
                payload = new byte[size];
            }
            in.readFully(payload);
        }

        @Override
        public int getBinaryLength() {
            return -1;
        }

        @Override
        public void copyTo(Record target) {
            target.key = key;
            target.timestamp = timestamp;
            target.sequence = sequence;
            target.payload = payload;
        }

        @Override
        public Record copy() {
            Record copied = new Record();
            copyTo(copied);
            return copied;
        }

        @Override
        public void copy(DataInputView source, DataOutputView target) throws IOException {
            target.write(source, 24);
            int size = source.readInt();
            target.writeInt(size);
            target.write(source, size);
        }
    }

    /** A key, its count and the sum of its numbers so far. */
    public static final class Totals {
        public long key;
        public long count;
        public long total;
    }

    /** Makes a record of a number. */
    static final class Make implements MapFunction<Long, Record> {
        private final long keys;
        private final long multiplier;
        private final byte[] payload = new byte[76];
        private final Record record = new Record();

        Make(long keys, long multiplier) {
            this.keys = keys;
            this.multiplier = multiplier;
        }

        @Override
        public Record map(Long number) {
            record.key = number * multiplier % keys;
            record.timestamp = number * 1000;
            record.sequence = number;
            record.payload = payload;
            return record;
        }
    }

    /** Counts and sums in keyed state; gives out the totals at the end of event time. */
    static final class Count extends KeyedProcessFunction<Long, Record, Totals> {
        private transient ValueState<Totals> state;

        @Override
        public void open(OpenContext context) {
            state = getRuntimeContext().getState(new ValueStateDescriptor<>("totals", Totals.class));
        }

        @Override
        public void processElement(Record record, Context context, Collector<Totals> out)
                throws IOException {
            Totals before = state.value();
            if (before == null) {
                context.timerService().registerEventTimeTimer(Long.MAX_VALUE);
            }
            Totals now = new Totals(); // a checkpoint may still read the old one
            now.key = record.key;
            now.count = before == null ? 1 : before.count + 1;
            now.total = record.sequence + (before == null ? 0 : before.total);
            state.update(now);
        }

        @Override
        public void onTimer(long time, OnTimerContext context, Collector<Totals> out)
                throws IOException {
            out.collect(state.value());
        }
    }

    /** Writes totals as lines. */
    static final class Answer extends RichMapFunction<Totals, Long> implements CheckpointListener {
        /** When the last subtask opened, and the newest checkpoint; one JVM holds them all. */
        static volatile long begun;

        static volatile long newest;

        private final String folder;
        private transient PrintWriter lines;

        Answer(String folder) {
            this.folder = folder;
        }

        @Override
        public void open(OpenContext context) throws IOException {
            int index = getRuntimeContext().getTaskInfo().getIndexOfThisSubtask();
            lines = new PrintWriter(Files.newBufferedWriter(Path.of(folder, index + ".csv")));
            begun = System.nanoTime();
        }

        @Override
        public Long map(Totals totals) {
            lines.println(totals.key + "," + totals.count + "," + totals.total);
            return totals.key;
        }

        @Override
        public void notifyCheckpointComplete(long checkpoint) {
            newest = checkpoint;
        }

        @Override
        public void close() {
            lines.close();
        }
    }
}
