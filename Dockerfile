# One static binary for each program and nothing else: no shell, no libc, no package to patch.
#
#   docker build --tag registry.example.com/exuvia:0.1.0 .
#   docker build --tag registry.example.com/mcp-operator:0.1.0 --target mcp-operator .
#
# The operators trust the cluster's own authority, which is mounted into their pods; public authorities are not needed.

# Alpine's Rust links statically against musl; its C compiler builds ring, which needs no other library.
FROM rust:1.95.0-alpine3.23 AS build-mcp-operator
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --release --locked --package mcp-operator --bins \
    && install -D -m 0555 target/release/mcp-operator /out/mcp-operator \
    && install -D -m 0555 target/release/mcp-runner /out/mcp-runner \
    # Nothing is to be loaded at run time: there would be nobody to find it in an empty image.
    && ! readelf --dynamic /out/mcp-operator /out/mcp-runner | grep NEEDED

# The image of the chart mcp-operator: both programs, because the operator starts runners from the image that it has itself.
FROM scratch AS mcp-operator
# Where the chart's `command: [mcp-operator]` is looked for.
ENV PATH=/usr/local/bin
COPY --from=build-mcp-operator /out/mcp-operator /out/mcp-runner /usr/local/bin/
COPY --from=build-mcp-operator /src/LICENSE /LICENSE
# A number, so that runAsNonRoot can be checked; the charts ask for the same one.
USER 65532:65532
EXPOSE 8080
# Pods of runners give arguments only.
ENTRYPOINT ["/usr/local/bin/mcp-runner"]

FROM rust:1.95.0-alpine3.23 AS build
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    # Without `exuvia demo`, which would start a control plane of its own.
    cargo build --release --locked --package exuvia --no-default-features \
    && install -D -m 0555 target/release/exuvia /out/exuvia \
    && ! readelf --dynamic /out/exuvia | grep NEEDED

# The last stage is what is built without --target.
FROM scratch
COPY --from=build /out/exuvia /exuvia
COPY --from=build /src/LICENSE /LICENSE
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/exuvia"]
CMD ["operator"]
