import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.spark.sql.SparkSession;

/**
 * ReadTable FORMAT PLACE FILE [NAME=VALUE]...: writes a table's rows to FILE, an object of JSON a
 * line. PLACE is what spark.read().format(FORMAT).load(PLACE) takes; settings are Spark's.
 */
public class ReadTable {
  public static void main(String[] arguments) throws Exception {
    SparkSession.Builder builder = SparkSession.builder().master("local[1]");
    for (int i = 3; i < arguments.length; i++) {
      String[] setting = arguments[i].split("=", 2);
      builder = builder.config(setting[0], setting[1]);
    }
    SparkSession spark = builder.getOrCreate();
    Files.write(
        Path.of(arguments[2]),
        spark.read().format(arguments[0]).load(arguments[1]).toJSON().collectAsList());
    spark.stop();
  }
}
