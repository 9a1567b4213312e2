# One static binary and nothing else: no shell, no libc, no package to patch.
#
#   docker build --tag registry.example.com/exuvia:0.1.0 .
#
# The operator trusts the cluster's own authority, which is mounted into its pod; public authorities are not needed.

# Alpine's Rust links statically against musl; its C compiler builds ring, which needs no other library.
FROM rust:1.95.0-alpine3.23 AS build
WORKDIR /src
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    # Without `exuvia demo`, which would start a control plane of its own.
    cargo build --release --locked --package exuvia --no-default-features \
    && install -D -m 0555 target/release/exuvia /out/exuvia \
    # Nothing is to be loaded at run time: there would be nobody to find it in an empty image.
    && ! readelf --dynamic /out/exuvia | grep NEEDED

FROM scratch
COPY --from=build /out/exuvia /exuvia
COPY --from=build /src/LICENSE /LICENSE
# A number, so that runAsNonRoot can be checked; the chart asks for the same one.
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/exuvia"]
CMD ["operator"]
