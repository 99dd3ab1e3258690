# syntax=docker/dockerfile:1
# One image per daemon, as `make images` makes them without Docker:
#   docker build --build-arg BIN=sidecar --build-arg VERSION=v1.2.3 -t ghcr.io/evenkeel/sidecar:v1.2.3 .
# BIN: sidecar, xds, injector, or redirect. Only redirect must run as root, for
# its capabilities: --build-arg USER=0:0, or the pod's runAsUser.
ARG USER=65532:65532

FROM --platform=$BUILDPLATFORM golang:1.26-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG BIN
ARG VERSION=dev
ARG TARGETARCH
RUN test -d "cmd/$BIN" || { echo "BIN=$BIN: want sidecar, xds, injector or redirect" >&2; exit 1; }
RUN CGO_ENABLED=0 GOOS=linux GOARCH=$TARGETARCH go build -trimpath -buildvcs=false \
      -ldflags "-s -w -X evenkeel.dev/cmd/internal/run.Version=$VERSION" -o /out/bin "./cmd/$BIN"
# The redirect's image brings the helper for preStop commands, for other containers.
RUN mkdir -p /out/root; if [ "$BIN" = redirect ]; then CGO_ENABLED=0 GOOS=linux GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -ldflags '-s -w' -o /out/root/hold ./cmd/hold; fi
# An entrypoint cannot hold a build argument: the binary has its own name, and
# /entrypoint is a link to it.
RUN mkdir -p /out/root/etc /out/root/tmp && chmod 1777 /out/root/tmp \
 && mv /out/bin "/out/root/$BIN" && ln -s "/$BIN" /out/root/entrypoint \
 && printf 'root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/tmp:/sbin/nologin\n' > /out/root/etc/passwd \
 && printf 'root:x:0:\nnonroot:x:65532:\n' > /out/root/etc/group

FROM scratch
ARG USER
COPY --from=build /out/root/ /
USER $USER
ENV PATH=/
ENTRYPOINT ["/entrypoint"]
