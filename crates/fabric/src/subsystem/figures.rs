//! A target's figures, for Prometheus.

use std::fmt;
use std::sync::Arc;

use engine::figures::{by_labels, counter, gauge, histograms};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::stats::{CommandKind, Stats};

/// The figures of a target.
#[derive(Debug)]
pub struct TargetMetrics(pub Arc<Stats>);

impl Collector for TargetMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let stats = &self.0;
        let e = &mut encoder;
        gauge(e, "yagura_target_connections", "Connections open.", stats.connections())?;
        counter(e, "yagura_target_connections_accepted", "Connections accepted.", stats.accepted())?;
        counter(e, "yagura_target_connections_refused", "Connections over the limit.", stats.refused())?;
        counter(e, "yagura_target_tls_connections", "Connections made over TLS.", stats.tls_connections())?;
        counter(e, "yagura_target_tls_failures", "Connections closed for want of security.", stats.tls_failures())?;
        counter(
            e,
            "yagura_target_authenticated",
            "Queues whose host has authenticated itself.",
            stats.authenticated(),
        )?;
        counter(
            e,
            "yagura_target_authentications_failed",
            "Queues ended because their host did not authenticate itself.",
            stats.authentications_failed(),
        )?;
        counter(e, "yagura_target_protocol_errors", "Connections ended by a bad PDU.", stats.protocol_errors())?;
        counter(
            e,
            "yagura_target_keep_alive_expired",
            "Associations whose host fell silent.",
            stats.keep_alive_expired(),
        )?;
        counter(e, "yagura_target_admin_commands", "Admin and Fabrics commands answered.", stats.admin_commands())?;
        counter(e, "yagura_target_read_bytes", "Bytes read for hosts.", stats.read_bytes())?;
        counter(e, "yagura_target_written_bytes", "Bytes written for hosts.", stats.written_bytes())?;
        let errors: u64 = stats.errors().map(|(_, count)| count).sum();
        counter(e, "yagura_target_errors", "Commands answered by another status than success.", errors)?;
        let commands = CommandKind::ALL.into_iter().map(|kind| ([("command", kind.label())], stats.commands(kind)));
        by_labels(e, ("yagura_target_commands", "I/O commands."), commands)?;
        let help = "From a command's arrival to its answer.";
        let times = CommandKind::ALL.into_iter().map(|kind| (kind.label(), stats.latency(kind)));
        histograms(e, ("yagura_target_command_seconds", help), "command", times)
    }
}
