// Opens a copy of a partition's directory with Apache Kafka's own log and cleans it once with Kafka's own cleaner, in
// this thread, with the settings that Kafka has where no key is set. Prints one line:
//
//     cleaned SECONDS SECONDS_OF_THE_FIRST_PASS
//
// Run as: java -cp 'JARS/*' KafkaLogCleaner.java DIRECTORY FIRST_UNCLEANABLE_OFFSET

import java.io.File;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.CleanerStats;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

public class KafkaLogCleaner {
    private static final int MAP_BYTES = 128 << 20;
    private static final int IO_BUFFER_BYTES = (512 << 10) / 2;
    private static final int MAX_BATCH_BYTES = 16 << 20;
    private static final double LOAD_FACTOR = 0.9;
    private static final int DAY_MS = 86_400_000;

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.put("cleanup.policy", "compact");
        properties.put("segment.bytes", "1073741824");
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        UnifiedLog log = UnifiedLog.create(
            new File(arguments[0]), new LogConfig(properties), 0L, 0L, scheduler, new BrokerTopicStats(), Time.SYSTEM,
            15 * 60_000, new ProducerStateManagerConfig(DAY_MS, false), 10 * 60_000, new LogDirFailureChannel(1), true,
            Optional.empty());
        log.updateHighWatermark(log.logEndOffset());
        Throttler throttler = new Throttler(Double.MAX_VALUE, 300, "cleaner-io", "bytes", Time.SYSTEM);
        Cleaner cleaner = new Cleaner(
            0, new SkimpyOffsetMap(MAP_BYTES), IO_BUFFER_BYTES, MAX_BATCH_BYTES, LOAD_FACTOR, throttler, Time.SYSTEM,
            partition -> { });
        long begin = System.nanoTime();
        Map.Entry<Long, CleanerStats> result =
            cleaner.clean(new LogToClean(log, 0L, Long.parseLong(arguments[1]), false));
        double elapsed = (System.nanoTime() - begin) / 1e9;
        CleanerStats stats = result.getValue();
        System.out.println("cleaned " + elapsed + " " + stats.elapsedIndexSecs());
        scheduler.shutdown();
        System.exit(0);
    }
}
