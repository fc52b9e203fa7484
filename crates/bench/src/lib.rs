//! Measurements: what Yagura costs beside what the same machine can do at best, and beside its peers.
//!
//! A figure counts when both sides ran in the same run on the same machine, interleaved (A B A B …); it is given as the
//! ratio of medians with its spread over the rounds. A row states its conditions, and never gives throughput without
//! latency and CPU time per operation. The product is started from outside, as a user would: the built binary, a socket.

mod access;
pub mod busy_flash_row;
pub mod cache_client;
mod cache_peers;
pub mod cache_row;
pub mod ceph;
pub mod ceph_row;
pub mod connections_row;
pub mod device_row;
pub mod device_wire_row;
pub mod erasure_row;
pub mod etc;
pub mod figures;
pub mod fill_row;
pub mod fio;
pub mod flash_cost_row;
pub mod flash_row;
pub mod floor;
pub mod floor_depth;
pub mod hostile;
pub mod hot_node_row;
pub mod idle_row;
pub mod isal;
pub mod kv_row;
pub mod kv_scale_row;
mod kv_sides;
pub mod load;
pub mod machine;
mod messages;
mod metered;
pub mod neighbour_row;
pub mod plot;
pub mod process;
pub mod progress;
pub mod remote_row;
pub mod restart_row;
pub mod scale_row;
pub mod stream_row;
pub mod text_client;
pub mod volume_beside_row;
pub mod volume_row;
pub mod wire_row;
pub mod workload;
