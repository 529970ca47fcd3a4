"""Spark SQL before and after a job: three lines each; the job runs in between, in Spark's workers.

spark-submit examples/spark_sql.py, or python examples/spark_sql.py
"""

from pyspark.sql import SparkSession

import headrace as hr

# Workers hold their slots as long as the job runs, and a lost worker is started again: of 4 slots
# each task may fail 8 times.
spark = SparkSession.builder.master("local[4,8]").appName("spark-sql").getOrCreate()

# Before: a DataFrame of Spark SQL is a source.
spark.range(100_000).createOrReplaceTempView("clicks")
clicks = spark.sql("select id, id % 7 as page, id % 100 as ms from clicks where id % 2 = 0")
seen = hr.read.dataframe(clicks, name="clicks")

pages = seen.key_by("page").aggregate(n=hr.count(), ms=hr.sum("ms"), emit="final", name="pages")
job = hr.Job("pages", pages.write.parquet("pages", name="out"), checkpoints="ckpt", parallelism=2)

if __name__ == "__main__":
    job.run()
    # After: a sink's output is a DataFrame again.
    job.to_dataframe("out").createOrReplaceTempView("pages")
    best = spark.sql("select page, n, ms / n as mean_ms from pages order by n desc, page limit 3")
    print(*(row.asDict() for row in best.collect()), sep="\n")
    spark.stop()
