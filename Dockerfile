# Build: everything. Image: only what runs, assembled by scripts/rootfs, which a test runs as well.
FROM node:24.21.0-bookworm-slim AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends iptables nftables ipset kmod \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY package.json package-lock.json .npmrc ./
RUN npm ci --no-audit --no-fund
COPY tsconfig.json LICENSE ./
COPY lib lib
COPY test test
COPY bench bench
COPY scripts scripts
RUN npm run build && scripts/rootfs /rootfs

FROM scratch
COPY --from=build /rootfs /
ENV PATH=/usr/sbin:/usr/bin
# Root, of whose rights `--cap-drop=ALL --cap-add=NET_ADMIN --cap-add=NET_RAW` leaves two: neither
# Docker nor Kubernetes can give a capability to another user. Where something can (ambient
# capabilities), the user kube-proxy (65532) of this image does.
USER 0:0
# Nothing is written: run it with --read-only. The host's flavour of iptables is found at the start.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
  CMD ["/usr/bin/node", "-e", "fetch('http://127.0.0.1:10256/livez').then((r) => process.exit(r.ok ? 0 : 1), () => process.exit(1))"]
ENTRYPOINT ["/usr/bin/node", "/app/build/lib/cli/main.js"]
