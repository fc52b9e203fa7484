//! Crate `nvme`.
