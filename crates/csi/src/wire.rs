//! The messages of the Container Storage Interface, version 1, as far as they are used: names, numbers and types of fields are
//! those of `csi.proto`, which has kept them since 1.0. What is left out is skipped when it is read; secrets are among that.

use std::collections::BTreeMap;

use prost::{Message, Oneof};

/// Words by words.
pub type Words = BTreeMap<String, String>;

/// A message without fields, or one of which no field counts.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Nothing {}

/// `google.protobuf.BoolValue`
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Truth {
    #[prost(bool, tag = "1")]
    pub value: bool,
}

/// `google.protobuf.Int64Value`
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Number {
    #[prost(int64, tag = "1")]
    pub value: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct PluginInfo {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub vendor_version: String,
}

/// `google.protobuf.Timestamp`
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Timestamp {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
}

/// A capability of any of the three services: each is a message of a message of a number.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Capability {
    #[prost(message, optional, tag = "1")]
    pub of: Option<CapabilityType>,
    /// Of the driver as a whole: how its volumes grow.
    #[prost(message, optional, tag = "2")]
    pub expansion: Option<CapabilityType>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct CapabilityType {
    #[prost(int32, tag = "1")]
    pub kind: i32,
}

/// `PluginCapability.Service.Type`
pub const CONTROLLER_SERVICE: i32 = 1;
/// See [`CONTROLLER_SERVICE`].
pub const VOLUME_ACCESSIBILITY_CONSTRAINTS: i32 = 2;
/// `PluginCapability.VolumeExpansion.Type`
pub const ONLINE: i32 = 1;

/// `ControllerServiceCapability.RPC.Type`
pub mod controller_rpc {
    pub const CREATE_DELETE_VOLUME: i32 = 1;
    pub const LIST_VOLUMES: i32 = 3;
    pub const GET_CAPACITY: i32 = 4;
    pub const CREATE_DELETE_SNAPSHOT: i32 = 5;
    pub const LIST_SNAPSHOTS: i32 = 6;
    pub const CLONE_VOLUME: i32 = 7;
    pub const EXPAND_VOLUME: i32 = 9;
    pub const SINGLE_NODE_MULTI_WRITER: i32 = 13;
}

/// `NodeServiceCapability.RPC.Type`
pub mod node_rpc {
    pub const STAGE_UNSTAGE_VOLUME: i32 = 1;
    pub const GET_VOLUME_STATS: i32 = 2;
    pub const EXPAND_VOLUME: i32 = 3;
    pub const SINGLE_NODE_MULTI_WRITER: i32 = 5;
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Capabilities {
    #[prost(message, repeated, tag = "1")]
    pub capabilities: Vec<Capability>,
}

impl Capabilities {
    /// Those kinds.
    pub fn of(kinds: &[i32]) -> Capabilities {
        let capability = |&kind| Capability { of: Some(CapabilityType { kind }), expansion: None };
        Capabilities { capabilities: kinds.iter().map(capability).collect() }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ProbeResponse {
    #[prost(message, optional, tag = "1")]
    pub ready: Option<Truth>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct CapacityRange {
    #[prost(int64, tag = "1")]
    pub required_bytes: i64,
    #[prost(int64, tag = "2")]
    pub limit_bytes: i64,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct VolumeCapability {
    #[prost(oneof = "AccessType", tags = "1, 2")]
    pub access_type: Option<AccessType>,
    #[prost(message, optional, tag = "3")]
    pub access_mode: Option<AccessMode>,
}

#[derive(Clone, PartialEq, Eq, Oneof)]
pub enum AccessType {
    #[prost(message, tag = "1")]
    Block(Nothing),
    #[prost(message, tag = "2")]
    Mount(MountVolume),
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct MountVolume {
    #[prost(string, tag = "1")]
    pub fs_type: String,
    #[prost(string, repeated, tag = "2")]
    pub mount_flags: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct AccessMode {
    #[prost(int32, tag = "1")]
    pub mode: i32,
}

/// `VolumeCapability.AccessMode.Mode`
pub mod mode {
    pub const SINGLE_NODE_WRITER: i32 = 1;
    pub const SINGLE_NODE_READER_ONLY: i32 = 2;
    pub const SINGLE_NODE_SINGLE_WRITER: i32 = 6;
    pub const SINGLE_NODE_MULTI_WRITER: i32 = 7;
}

/// Where a volume's contents come from.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct VolumeContentSource {
    #[prost(oneof = "SourceType", tags = "1, 2")]
    pub source: Option<SourceType>,
}

#[derive(Clone, PartialEq, Eq, Oneof)]
pub enum SourceType {
    #[prost(message, tag = "1")]
    Snapshot(SnapshotId),
    #[prost(message, tag = "2")]
    Volume(VolumeId),
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Topology {
    #[prost(btree_map = "string, string", tag = "1")]
    pub segments: Words,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Volume {
    #[prost(int64, tag = "1")]
    pub capacity_bytes: i64,
    #[prost(string, tag = "2")]
    pub volume_id: String,
    #[prost(btree_map = "string, string", tag = "3")]
    pub volume_context: Words,
    #[prost(message, optional, tag = "4")]
    pub content_source: Option<VolumeContentSource>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct CreateVolumeRequest {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub capacity_range: Option<CapacityRange>,
    #[prost(message, repeated, tag = "3")]
    pub volume_capabilities: Vec<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "4")]
    pub parameters: Words,
    #[prost(message, optional, tag = "6")]
    pub volume_content_source: Option<VolumeContentSource>,
    #[prost(btree_map = "string, string", tag = "8")]
    pub mutable_parameters: Words,
}

/// `CreateVolumeResponse`, and an entry of `ListVolumesResponse`: of both the volume is the first field.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct OneVolume {
    #[prost(message, optional, tag = "1")]
    pub volume: Option<Volume>,
}

/// `DeleteVolumeRequest`, `VolumeContentSource.VolumeSource`
#[derive(Clone, PartialEq, Eq, Message)]
pub struct VolumeId {
    #[prost(string, tag = "1")]
    pub volume_id: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ValidateRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub volume_context: Words,
    #[prost(message, repeated, tag = "3")]
    pub volume_capabilities: Vec<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "4")]
    pub parameters: Words,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ValidateResponse {
    #[prost(message, optional, tag = "1")]
    pub confirmed: Option<Confirmed>,
    #[prost(string, tag = "2")]
    pub message: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Confirmed {
    #[prost(btree_map = "string, string", tag = "1")]
    pub volume_context: Words,
    #[prost(message, repeated, tag = "2")]
    pub volume_capabilities: Vec<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "3")]
    pub parameters: Words,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ListRequest {
    #[prost(int32, tag = "1")]
    pub max_entries: i32,
    #[prost(string, tag = "2")]
    pub starting_token: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct ListResponse {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<OneVolume>,
    #[prost(string, tag = "2")]
    pub next_token: String,
}

/// `DeleteSnapshotRequest`, `VolumeContentSource.SnapshotSource`
#[derive(Clone, PartialEq, Eq, Message)]
pub struct SnapshotId {
    #[prost(string, tag = "1")]
    pub snapshot_id: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct CreateSnapshotRequest {
    #[prost(string, tag = "1")]
    pub source_volume_id: String,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(btree_map = "string, string", tag = "4")]
    pub parameters: Words,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct Snapshot {
    #[prost(int64, tag = "1")]
    pub size_bytes: i64,
    #[prost(string, tag = "2")]
    pub snapshot_id: String,
    #[prost(string, tag = "3")]
    pub source_volume_id: String,
    #[prost(message, optional, tag = "4")]
    pub creation_time: Option<Timestamp>,
    #[prost(bool, tag = "5")]
    pub ready_to_use: bool,
}

/// `CreateSnapshotResponse`, and an entry of `ListSnapshotsResponse`.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct OneSnapshot {
    #[prost(message, optional, tag = "1")]
    pub snapshot: Option<Snapshot>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct SnapshotsRequest {
    #[prost(int32, tag = "1")]
    pub max_entries: i32,
    #[prost(string, tag = "2")]
    pub starting_token: String,
    #[prost(string, tag = "3")]
    pub source_volume_id: String,
    #[prost(string, tag = "4")]
    pub snapshot_id: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct SnapshotsResponse {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<OneSnapshot>,
    #[prost(string, tag = "2")]
    pub next_token: String,
}

/// `ControllerExpandVolumeRequest`
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ExpandRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(message, optional, tag = "2")]
    pub capacity_range: Option<CapacityRange>,
}

/// `ControllerExpandVolumeResponse`, and `NodeExpandVolumeResponse`, which has the first field alone.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ExpandResponse {
    #[prost(int64, tag = "1")]
    pub capacity_bytes: i64,
    #[prost(bool, tag = "2")]
    pub node_expansion_required: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct NodeExpandRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub volume_path: String,
    #[prost(message, optional, tag = "3")]
    pub capacity_range: Option<CapacityRange>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct CapacityRequest {
    #[prost(message, repeated, tag = "1")]
    pub volume_capabilities: Vec<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "2")]
    pub parameters: Words,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct CapacityResponse {
    #[prost(int64, tag = "1")]
    pub available_capacity: i64,
    #[prost(message, optional, tag = "2")]
    pub maximum_volume_size: Option<Number>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct StageRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
    #[prost(message, optional, tag = "4")]
    pub volume_capability: Option<VolumeCapability>,
}

/// `NodeUnstageVolumeRequest`, and `NodeUnpublishVolumeRequest`: the second field is the path that ends.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct EndRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub path: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct PublishRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
    #[prost(string, tag = "4")]
    pub target_path: String,
    #[prost(message, optional, tag = "5")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(bool, tag = "6")]
    pub readonly: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct StatsRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub volume_path: String,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct StatsResponse {
    #[prost(message, repeated, tag = "1")]
    pub usage: Vec<VolumeUsage>,
}

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct VolumeUsage {
    #[prost(int64, tag = "1")]
    pub available: i64,
    #[prost(int64, tag = "2")]
    pub total: i64,
    #[prost(int64, tag = "3")]
    pub used: i64,
    /// [`BYTES`] or [`INODES`].
    #[prost(int32, tag = "4")]
    pub unit: i32,
}

pub const BYTES: i32 = 1;
pub const INODES: i32 = 2;

#[derive(Clone, PartialEq, Eq, Message)]
pub struct NodeInfo {
    #[prost(string, tag = "1")]
    pub node_id: String,
    #[prost(int64, tag = "2")]
    pub max_volumes_per_node: i64,
    #[prost(message, optional, tag = "3")]
    pub accessible_topology: Option<Topology>,
}
