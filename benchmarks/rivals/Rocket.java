import java.io.FileInputStream;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.Locale;
import java.util.Random;
import java.util.Scanner;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * The workloads of `tests.rivals` on RocketMQ: a transactional producer whose local transaction is
 * empty, and a push consumer, in one JVM, so that there is one clock.
 *
 * <p>`Rocket NAME_SERVER PIPE` reads a workload a line, `RATE THREADS MESSAGES LEAD SIZE`, and
 * answers with one line of JSON. RATE 0: each thread sends when its last transaction has ended. Otherwise
 * messages are due on schedule, and their age counts from then; the first LEAD are not counted.
 */
public class Rocket {
    static final long SILENCE_NS = 1_000_000_000L; // a duplicate would follow within this time
    static final long REGISTERED_NS_MAX = 60_000_000_000L;
    static final long WAIT_NS_MAX = 60_000_000_000L;
    static final int QUEUES = 8; // as its own default, twice as many as halfbridge has partitions

    /** What a workload knows of its messages, by their number. */
    static class Book {
        final int epoch, lead;
        final long[] dueNs, seenNs;
        final AtomicInteger seen = new AtomicInteger(), again = new AtomicInteger();
        volatile long lastNs;

        Book(int epoch, int messages, int lead) {
            this.epoch = epoch;
            this.lead = lead;
            dueNs = new long[messages];
            seenNs = new long[messages];
        }

        synchronized void see(int number, long nowNs) {
            if (seenNs[number] == 0) {
                seenNs[number] = nowNs;
                lastNs = nowNs;
                seen.incrementAndGet();
            } else {
                again.incrementAndGet();
            }
        }
    }

    static volatile Book book = new Book(0, 0, 0);

    public static void main(String[] arguments) {
        try {
            serve(arguments);
            System.exit(0);
        } catch (Throwable error) { // the producer's threads would keep the process
            error.printStackTrace();
            System.exit(1);
        }
    }

    static void serve(String[] arguments) throws Exception {
        String run = Long.toString(System.nanoTime(), 36), topic = "bench_" + run;
        TransactionMQProducer producer = new TransactionMQProducer("producer_" + run);
        producer.setNamesrvAddr(arguments[0]);
        producer.setTransactionListener(new TransactionListener() {
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        createTopic(producer, topic);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("consumer_" + run);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long nowNs = System.nanoTime();
            Book now = book;
            for (MessageExt message : messages) {
                ByteBuffer body = ByteBuffer.wrap(message.getBody());
                if (body.getInt() == now.epoch) now.see(body.getInt(), nowNs);
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.out.println("{\"ready\": true}");
        Scanner lines = new Scanner(new FileInputStream(arguments[1]));
        for (int epoch = 1; lines.hasNextDouble(); epoch++) {
            double rate = lines.nextDouble();
            int threads = lines.nextInt(), messages = lines.nextInt(), lead = lines.nextInt();
            int size = lines.nextInt();
            book = new Book(epoch, messages + lead, lead);
            System.out.println(measure(producer, topic, rate, threads, size));
        }
    }

    /** Creates the topic; a broker registers with the name server a moment after it says that it runs. */
    static void createTopic(TransactionMQProducer producer, String topic) throws Exception {
        long untilNs = System.nanoTime() + REGISTERED_NS_MAX;
        while (true) {
            try {
                producer.createTopic("TBW102", topic, QUEUES, null);
                return;
            } catch (MQClientException error) {
                if (System.nanoTime() > untilNs) throw error;
                Thread.sleep(200);
            }
        }
    }

    static String measure(
            TransactionMQProducer producer, String topic, double rate, int threads, int size)
            throws Exception {
        Book now = book;
        int total = now.dueNs.length;
        byte[] filler = new byte[size];
        new Random(1).nextBytes(filler);
        AtomicInteger next = new AtomicInteger(), failed = new AtomicInteger();
        long startNs = System.nanoTime();
        Thread[] pool = new Thread[threads];
        for (int each = 0; each < threads; each++) {
            pool[each] = new Thread(() -> {
                for (int number; (number = next.getAndIncrement()) < total; ) {
                    long dueNs = System.nanoTime();
                    if (rate > 0) {
                        dueNs = startNs + (long) (number * (1e9 / rate));
                        for (long left; (left = dueNs - System.nanoTime()) > 0; )
                            LockSupport.parkNanos(left);
                    }
                    now.dueNs[number] = dueNs;
                    byte[] body = filler.clone();
                    ByteBuffer.wrap(body).putInt(now.epoch).putInt(number);
                    try {
                        SendStatus status = producer
                                .sendMessageInTransaction(new Message(topic, body), null)
                                .getSendStatus();
                        if (status != SendStatus.SEND_OK) failed.incrementAndGet();
                    } catch (Exception error) {
                        if (failed.getAndIncrement() == 0) System.err.println(error);
                    }
                }
            });
            pool[each].start();
        }
        for (Thread each : pool) each.join();
        long endNs = System.nanoTime() + WAIT_NS_MAX;
        while (now.seen.get() < total - failed.get() && System.nanoTime() < endNs) Thread.sleep(1);
        while (System.nanoTime() - now.lastNs < SILENCE_NS) Thread.sleep(10);
        return result(now, failed.get());
    }

    static String result(Book now, int failed) {
        int total = now.dueNs.length, count = 0;
        long firstNs = Long.MAX_VALUE;
        long[] ages = new long[total - now.lead];
        for (int number = now.lead; number < total; number++) {
            firstNs = Math.min(firstNs, now.dueNs[number]);
            if (now.seenNs[number] != 0) ages[count++] = now.seenNs[number] - now.dueNs[number];
        }
        ages = Arrays.copyOf(ages, count);
        Arrays.sort(ages);
        return String.format(
                Locale.ROOT,
                "{\"transactions_per_s\": %.1f, \"p50\": %.3f, \"p99\": %.3f, \"lost\": %d,"
                        + " \"duplicates\": %d, \"failed\": %d}",
                count * 1e9 / (now.lastNs - firstNs), percentile(ages, 50), percentile(ages, 99),
                total - now.lead - count, now.again.get(), failed);
    }

    /** Nearest rank, as `halfbridge.bench.result.percentile`, in milliseconds. */
    static double percentile(long[] ordered, int percent) {
        if (ordered.length == 0) return 0;
        return ordered[Math.max(0, (int) Math.ceil(ordered.length * percent / 100.0) - 1)] / 1e6;
    }
}
