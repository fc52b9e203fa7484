//! NVMe over Fabrics, both ends: protocol cores that do no I/O, and the TCP transport that drives them.
//!
//! [`tcp`] is the PDU codec that both ends share.

pub mod tcp;
