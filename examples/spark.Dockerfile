# Spark's image with headrace, for Kubernetes: docker build -f examples/spark.Dockerfile .
#
# Driver and executors use the same image, so their Pythons are the same. The Python of Spark's
# image is that of its distribution; headrace needs 3.11 or newer, so the image brings one by uv.
# Not built by the project's tests.
ARG SPARK=4.0.1-scala2.13-java17-python3-ubuntu
FROM apache/spark:${SPARK}
ARG PYSPARK=4.0.1

USER root
ENV UV_PYTHON_INSTALL_DIR=/opt/python
RUN python3 -m pip install --no-cache-dir uv && uv venv --python 3.12 /opt/venv

# The clone; once there are releases: uv pip install 'headrace[s3]'.
COPY . /opt/headrace
RUN uv pip install --python /opt/venv/bin/python '/opt/headrace[s3]' "pyspark==${PYSPARK}" \
    && rm -rf /opt/headrace

# What Spark starts in the driver and in executors.
ENV PYSPARK_PYTHON=/opt/venv/bin/python PYSPARK_DRIVER_PYTHON=/opt/venv/bin/python
ENV PATH=/opt/venv/bin:${PATH}

# Your program: COPY job.py /opt/job/
USER spark
