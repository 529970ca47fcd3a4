import java.nio.charset.StandardCharsets;
import org.apache.flink.api.common.functions.FlatMapFunction;
import org.apache.flink.util.Collector;

/** The events of Nexmark as functions of their numbers: bench/nexmark/events.py in Java. */
final class Events {

    static final long BEGIN_MS = 1_700_000_000_000L;
    static final int POOL = 1024;
    static final long[] POWERS = {1, 10, 100, 1_000, 10_000, 100_000};
    static final String[] STATES = {"AZ", "CA", "ID", "OR", "WA", "WY"};
    static final String[] CITIES = {
        "Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland",
        "Bend", "Redmond", "Seattle", "Kent", "Cheyenne"
    };
    static final String[] CHANNELS = {"Google", "Facebook", "Baidu", "Apple"};
    static final String[] FIRST = {
        "Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie"
    };
    static final String[] LAST = {
        "Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones"
    };
    static final String[] EMAILS = pool(12, 11);
    static final String[] CARDS = pool(16, 12);
    static final String[] ITEMS = pool(20, 13);
    static final String[] DESCRIPTIONS = pool(100, 14);
    static final String[] EXTRAS = pool(40, 15);
    static final String[] URLS = pool(30, 16);

    private Events() {}

    static long mixed(long number, long salt) {
        long h = number * 0x9E3779B97F4A7C15L + salt;
        h = (h ^ (h >>> 30)) * 0xBF58476D1CE4E5B9L;
        h = (h ^ (h >>> 27)) * 0x94D049BB133111EBL;
        return h ^ (h >>> 31);
    }

    static int bits(long h, int shift, int count) {
        return (int) ((h >>> shift & 0xFFFF) % count);
    }

    static long price(long h) {
        return (100 + bits(h, 0, 900)) * POWERS[bits(h, 16, 6)];
    }

    static long time(long number) {
        return BEGIN_MS + number / 10;
    }

    private static String[] pool(int length, long salt) {
        byte[] letters = new byte[POOL * length];
        for (int i = 0; i < letters.length; i++) {
            letters[i] = (byte) (Long.remainderUnsigned(mixed(i, salt), 26) + 'a');
        }
        String[] found = new String[POOL];
        for (int i = 0; i < POOL; i++) {
            found[i] = new String(letters, i * length, length, StandardCharsets.US_ASCII);
        }
        return found;
    }

    /** A person. */
    public static final class Person {
        public long id;
        public String name;
        public String email;
        public String card;
        public String city;
        public String state;
        public long ms;
        public String extra;
    }

    /** An auction. */
    public static final class Auction {
        public long id;
        public String item;
        public String description;
        public long initial;
        public long reserve;
        public long ms;
        public long expires;
        public long seller;
        public long category;
        public String extra;
    }

    /** A bid. */
    public static final class Bid {
        public long auction;
        public long bidder;
        public long price;
        public String channel;
        public String url;
        public long ms;
        public String extra;
    }

    /** Makes the persons among the numbers. */
    record Persons(Order order, long seed) implements FlatMapFunction<Long, Person> {
        @Override
        public void flatMap(Long place, Collector<Person> out) {
            long number = order.number(place);
            if (number % 50 != 0) {
                return;
            }
            long h = mixed(number, seed);
            int name = bits(h, 0, 64);
            Person made = new Person();
            made.id = 1000 + number / 50;
            made.name = FIRST[name / 8] + " " + LAST[name % 8];
            made.email = EMAILS[bits(h, 8, POOL)];
            made.card = CARDS[bits(h, 12, POOL)];
            made.city = CITIES[bits(h, 16, 10)];
            made.state = STATES[bits(h, 32, 6)];
            made.ms = time(number);
            made.extra = EXTRAS[bits(h, 44, POOL)];
            out.collect(made);
        }
    }

    /** Makes the auctions among the numbers. */
    record Auctions(Order order, long seed) implements FlatMapFunction<Long, Auction> {
        @Override
        public void flatMap(Long place, Collector<Auction> out) {
            long number = order.number(place);
            long kind = number % 50;
            if (kind < 1 || kind > 3) {
                return;
            }
            long h = mixed(number, seed);
            long other = mixed(number, seed + 1);
            long newest = number / 50;
            long old = newest - (h >>> 8 & 0xFFFFF) % Math.min(newest + 1, 1000);
            Auction made = new Auction();
            made.id = 1000 + newest * 3 + kind - 1;
            made.item = ITEMS[bits(other, 36, POOL)];
            made.description = DESCRIPTIONS[bits(other, 40, POOL)];
            made.initial = price(other);
            made.reserve = made.initial + made.initial / 2;
            made.ms = time(number);
            made.expires = made.ms + 1 + bits(h, 28, 333);
            made.seller = 1000 + ((h & 3) != 0 ? newest / 100 * 100 : old);
            made.category = 10 + bits(h, 48, 5);
            made.extra = EXTRAS[bits(other, 44, POOL)];
            out.collect(made);
        }
    }

    /** Makes the bids among the numbers. */
    record Bids(Order order, long seed) implements FlatMapFunction<Long, Bid> {
        @Override
        public void flatMap(Long place, Collector<Bid> out) {
            long number = order.number(place);
            if (number % 50 < 4) {
                return;
            }
            long h = mixed(number, seed);
            long other = mixed(number, seed + 1);
            long person = number / 50;
            long newest = person * 3 + 2;
            long old = newest - (h >>> 8 & 0xFFFFF) % Math.min(newest + 1, 100);
            long active = person - (h >>> 28 & 0xFFFFF) % Math.min(person + 1, 1000);
            long hot = Math.min(person / 100 * 100 + 1, person);
            Bid made = new Bid();
            made.auction = 1000 + ((h & 1) != 0 ? newest / 100 * 100 : old);
            made.bidder = 1000 + ((h & 6) != 0 ? hot : active);
            made.price = price(other);
            made.channel = CHANNELS[bits(other, 36, 4)];
            made.url = URLS[bits(other, 40, POOL)];
            made.ms = time(number);
            made.extra = EXTRAS[bits(other, 44, POOL)];
            out.collect(made);
        }
    }

    /**
     * A source deals out contiguous ranges to its subtasks; this deals single numbers, so that all
     * subtasks move through event time together. The count of events is a multiple of theirs.
     */
    record Order(long events, int workers) implements java.io.Serializable {
        long number(long place) {
            long each = events / workers;
            return place % each * workers + place / each;
        }
    }
}
