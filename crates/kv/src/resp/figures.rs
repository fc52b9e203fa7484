//! A gateway's figures, for Prometheus.

use std::fmt;
use std::sync::Arc;

use engine::figures::{UNAUTHENTICATED, counter, gauge, latency};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::stats::{GatewayState, GatewayStats};

/// The figures of a gateway.
#[derive(Debug)]
pub struct GatewayMetrics(pub Arc<GatewayState>);

impl Collector for GatewayMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let stats = &self.0.stats;
        let load = GatewayStats::load;
        let e = &mut encoder;
        counter(e, "yagura_gateway_connections_accepted", "Connections accepted.", load(&stats.connections_total))?;
        gauge(e, "yagura_gateway_connections", "Connections open.", load(&stats.connections))?;
        counter(
            e,
            "yagura_gateway_connections_refused",
            "Connections over a limit.",
            load(&stats.connections_refused),
        )?;
        let refused = load(&stats.refused_unauthenticated);
        counter(e, "yagura_gateway_connections_refused_unauthenticated", UNAUTHENTICATED, refused)?;
        counter(e, "yagura_gateway_commands", "Commands answered.", load(&stats.commands))?;
        counter(e, "yagura_gateway_errors", "Commands answered by an error.", load(&stats.errors))?;
        counter(e, "yagura_gateway_protocol_errors", "Connections ended by bad input.", load(&stats.protocol_errors))?;
        counter(e, "yagura_gateway_hits", "Reads that found their key.", load(&stats.hits))?;
        counter(e, "yagura_gateway_misses", "Reads that found nothing.", load(&stats.misses))?;
        counter(e, "yagura_gateway_received_bytes", "Bytes received.", load(&stats.bytes_received))?;
        counter(e, "yagura_gateway_sent_bytes", "Bytes sent.", load(&stats.bytes_sent))?;
        latency(e, "yagura_gateway_read_seconds", "Time of commands that read.", &stats.read_latency)?;
        latency(e, "yagura_gateway_write_seconds", "Time of commands that write.", &stats.write_latency)
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn histograms_are_cumulative_and_end_at_infinity() {
        let shared = Arc::new(GatewayState::default());
        [0, 15, 16, 20, 31, 8_388_607, 100_000_000].iter().for_each(|us| shared.stats.read_latency.record_units(*us));
        let mut registry = Registry::default();
        registry.register_collector(Box::new(GatewayMetrics(shared)));
        let mut text = String::new();
        encode(&mut text, &registry).expect("a String takes all");
        for line in [
            "yagura_gateway_read_seconds_bucket{le=\"0.000016\"} 2",
            "yagura_gateway_read_seconds_bucket{le=\"0.000032\"} 5",
            "yagura_gateway_read_seconds_bucket{le=\"4.194304\"} 5",
            "yagura_gateway_read_seconds_bucket{le=\"8.388608\"} 6",
            "yagura_gateway_read_seconds_bucket{le=\"+Inf\"} 7",
            "yagura_gateway_read_seconds_count 7",
            "yagura_gateway_commands_total 0",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }
}
