//! The methods, by their paths: what a request says is checked and handed on, what comes of it is answered.

use std::future::ready;
use std::path::Path;
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use prost::Message;
use tokio::sync::Semaphore;
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

use crate::asked::required;
use crate::capability::{Use, understood};
use crate::controller::Controller;
use crate::growth::{answer, grown};
use crate::identity;
use crate::node::{Machine, Node, Usage, VOLUMES_MAX};
use crate::plane::Plane;
use crate::wire::{
    BYTES, Capabilities, EndRequest, ExpandResponse, INODES, NodeExpandRequest, NodeInfo, Nothing, PublishRequest,
    StageRequest, StatsRequest, StatsResponse, Topology, VolumeCapability, VolumeUsage, Words, node_rpc,
};

/// Bytes of a message, at most. Chosen: many times the longest that there is.
const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Calls that are under way, at most. Chosen: several times what an orchestrator's parts have under way.
const CALLS_MAX: usize = 128;
/// Bytes of a path, at most: the kernel's.
const PATH_BYTES_MAX: usize = 4096;

/// What a node's part needs.
pub struct NodeService<M> {
    /// Its volumes.
    pub node: Arc<Node<M>>,
    /// The control plane, which says whether there is a volume.
    pub plane: Plane,
    /// What the orchestrator calls the node.
    pub id: String,
    /// Where it stands, in words of the orchestrator.
    pub topology: Words,
}

/// The services of one process.
pub struct Services<M> {
    controller: Option<Controller>,
    node: Option<NodeService<M>>,
    has_topology: bool,
    places: Arc<Semaphore>,
}

impl<M: Machine> Services<M> {
    /// Those that are there, and whether nodes say where they stand.
    pub fn new(controller: Option<Controller>, node: Option<NodeService<M>>, has_topology: bool) -> Services<M> {
        Services { controller, node, has_topology, places: Arc::new(Semaphore::new(CALLS_MAX)) }
    }

    /// Answers a call. What was begun is done to its end, also when the caller leaves, and has its place until then.
    pub async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            return Status::unavailable(format!("{CALLS_MAX} calls are under way: call again")).into_http();
        };
        let answered = tokio::spawn(async move {
            let response = self.answered(request).await;
            drop(place);
            response
        });
        answered.await.unwrap_or_else(|error| Status::internal(error.to_string()).into_http())
    }

    async fn answered(&self, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path().to_owned();
        match path.strip_prefix("/csi.v1.").and_then(|path| path.split_once('/')) {
            Some(("Identity", method)) => self.identity(method, request).await,
            Some(("Controller", method)) => self.controller(method, request).await,
            Some(("Node", method)) => self.node(method, request).await,
            _ => unknown(&path),
        }
    }

    async fn identity(&self, method: &str, request: Request<Incoming>) -> Response<Body> {
        match method {
            "GetPluginInfo" => unary(request, |_: Nothing| ready(Ok(identity::info()))).await,
            "GetPluginCapabilities" => {
                unary(request, |_: Nothing| ready(Ok(identity::capabilities(self.has_topology)))).await
            }
            "Probe" => unary(request, |_: Nothing| ready(Ok(identity::probe()))).await,
            _ => unknown(method),
        }
    }

    async fn controller(&self, method: &str, request: Request<Incoming>) -> Response<Body> {
        let Some(it) = &self.controller else { return unknown(method) };
        match method {
            "ControllerGetCapabilities" => unary(request, |_: Nothing| ready(Ok(it.capabilities()))).await,
            "CreateVolume" => unary(request, |asked| it.create(asked)).await,
            "DeleteVolume" => unary(request, |asked| it.delete(asked)).await,
            "ValidateVolumeCapabilities" => unary(request, |asked| it.validate(asked)).await,
            "ListVolumes" => unary(request, |asked| it.list(asked)).await,
            "ControllerExpandVolume" => unary(request, |asked| it.expand(asked)).await,
            "CreateSnapshot" => unary(request, |asked| it.take(asked)).await,
            "DeleteSnapshot" => unary(request, |asked| it.forget(asked)).await,
            "ListSnapshots" => unary(request, |asked| it.snapshots(asked)).await,
            "GetCapacity" => unary(request, |asked| it.capacity(asked)).await,
            _ => unknown(method),
        }
    }

    async fn node(&self, method: &str, request: Request<Incoming>) -> Response<Body> {
        let Some(it) = &self.node else { return unknown(method) };
        match method {
            "NodeGetCapabilities" => unary(request, |_: Nothing| ready(Ok(it.capabilities()))).await,
            "NodeGetInfo" => unary(request, |_: Nothing| ready(Ok(it.info()))).await,
            "NodeStageVolume" => unary(request, |asked| it.stage(asked)).await,
            "NodeUnstageVolume" => unary(request, |asked| it.unstage(asked)).await,
            "NodePublishVolume" => unary(request, |asked| it.publish(asked)).await,
            "NodeUnpublishVolume" => unary(request, |asked| it.unpublish(asked)).await,
            "NodeExpandVolume" => unary(request, |asked| it.expand(asked)).await,
            "NodeGetVolumeStats" => unary(request, |asked| it.stats(asked)).await,
            _ => unknown(method),
        }
    }
}

impl<M: Machine> NodeService<M> {
    fn capabilities(&self) -> Capabilities {
        Capabilities::of(&[
            node_rpc::STAGE_UNSTAGE_VOLUME,
            node_rpc::GET_VOLUME_STATS,
            node_rpc::EXPAND_VOLUME,
            node_rpc::SINGLE_NODE_MULTI_WRITER,
        ])
    }

    fn info(&self) -> NodeInfo {
        let segments = self.topology.clone();
        let accessible_topology = (!segments.is_empty()).then_some(Topology { segments });
        NodeInfo { node_id: self.id.clone(), max_volumes_per_node: VOLUMES_MAX as i64, accessible_topology }
    }

    async fn stage(&self, asked: StageRequest) -> Result<Nothing, Status> {
        let volume = required("volume_id", &asked.volume_id)?.to_owned();
        let staging = path("staging_target_path", &asked.staging_target_path)?.to_owned();
        let access = usable(asked.volume_capability.as_ref())?.access;
        // What is staged already does not need the control plane.
        if !self.node.knows(&volume)? && self.plane.volume(&volume).await?.is_none() {
            return Err(Status::not_found(format!("there is no volume {volume}")));
        }
        self.done(move |node| node.stage(&volume, &staging, &access)).await
    }

    async fn unstage(&self, asked: EndRequest) -> Result<Nothing, Status> {
        let volume = required("volume_id", &asked.volume_id)?.to_owned();
        let staging = path("staging_target_path", &asked.path)?.to_owned();
        self.done(move |node| node.unstage(&volume, &staging)).await
    }

    async fn publish(&self, asked: PublishRequest) -> Result<Nothing, Status> {
        let volume = required("volume_id", &asked.volume_id)?.to_owned();
        let target = path("target_path", &asked.target_path)?.to_owned();
        let mut wanted = usable(asked.volume_capability.as_ref())?;
        wanted.is_read_only |= asked.readonly;
        if asked.staging_target_path.is_empty() {
            return Err(Status::failed_precondition("staging_target_path is missing: a volume is staged first"));
        }
        let staging = path("staging_target_path", &asked.staging_target_path)?.to_owned();
        self.done(move |node| node.publish(&volume, &staging, &target, &wanted)).await
    }

    async fn unpublish(&self, asked: EndRequest) -> Result<Nothing, Status> {
        let volume = required("volume_id", &asked.volume_id)?.to_owned();
        let target = path("target_path", &asked.path)?.to_owned();
        self.done(move |node| node.unpublish(&volume, &target)).await
    }

    async fn stats(&self, asked: StatsRequest) -> Result<StatsResponse, Status> {
        let volume = required("volume_id", &asked.volume_id)?.to_owned();
        if asked.volume_path.is_empty() {
            return Err(Status::invalid_argument("volume_path is missing"));
        }
        let usage = self.blocking(move |node| node.usage(&volume, Path::new(&asked.volume_path))).await?;
        Ok(StatsResponse { usage: shown(&usage) })
    }

    async fn expand(&self, asked: NodeExpandRequest) -> Result<ExpandResponse, Status> {
        let volume = required("volume_id", &asked.volume_id)?.to_owned();
        if asked.volume_path.is_empty() {
            return Err(Status::invalid_argument("volume_path is missing"));
        }
        let found = self.plane.volume(&volume).await?;
        let found = found.ok_or_else(|| Status::not_found(format!("there is no volume {volume}")))?;
        let bytes = grown(&found, asked.capacity_range)?;
        let has = self.blocking(move |node| node.expand(&volume, Path::new(&asked.volume_path), bytes)).await?;
        Ok(answer(has, false))
    }

    async fn done(
        &self,
        work: impl FnOnce(&Node<M>) -> Result<(), Status> + Send + 'static,
    ) -> Result<Nothing, Status> {
        self.blocking(work).await.map(|()| Nothing {})
    }

    /// On a thread that may wait.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Node<M>) -> Result<T, Status> + Send + 'static,
    ) -> Result<T, Status> {
        let node = self.node.clone();
        let worked = tokio::task::spawn_blocking(move || work(&node)).await;
        worked.unwrap_or_else(|error| Err(Status::internal(error.to_string())))
    }
}

fn path<'a>(what: &str, text: &'a str) -> Result<&'a Path, Status> {
    match text {
        "" => Err(Status::invalid_argument(format!("{what} is missing"))),
        long if long.len() > PATH_BYTES_MAX => {
            Err(Status::invalid_argument(format!("{what} has more than {PATH_BYTES_MAX} bytes")))
        }
        relative if !relative.starts_with('/') => {
            Err(Status::invalid_argument(format!("{what} does not begin at the root")))
        }
        path => Ok(Path::new(path)),
    }
}

fn usable(capability: Option<&VolumeCapability>) -> Result<Use, Status> {
    let capability = capability.ok_or_else(|| Status::invalid_argument("volume_capability is missing"))?;
    understood(capability).map_err(Status::invalid_argument)
}

fn shown(usage: &Usage) -> Vec<VolumeUsage> {
    let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let total = number(usage.bytes);
    let Some(free) = usage.filesystem else {
        return vec![VolumeUsage { total, unit: BYTES, ..VolumeUsage::default() }];
    };
    let bytes = VolumeUsage { available: number(free.available), total, used: number(free.used), unit: BYTES };
    let (total, available) = (number(free.files), number(free.files_free));
    let used = total.saturating_sub(available);
    vec![bytes, VolumeUsage { available, total, used, unit: INODES }]
}

fn unknown(method: &str) -> Response<Body> {
    Status::new(Code::Unimplemented, format!("{method} is not offered here")).into_http()
}

/// A method of one question and one answer.
struct Method<F>(F);

impl<Q, A, R, F> UnaryService<Q> for Method<F>
where
    F: Fn(tonic::Request<Q>) -> R,
    R: Future<Output = Result<tonic::Response<A>, Status>>,
{
    type Response = A;
    type Future = R;

    fn call(&mut self, request: tonic::Request<Q>) -> R {
        (self.0)(request)
    }
}

async fn unary<Q, A, R>(request: Request<Incoming>, answer: impl Fn(Q) -> R) -> Response<Body>
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
    R: Future<Output = Result<A, Status>>,
{
    let method = Method(|asked: tonic::Request<Q>| {
        let answered = answer(asked.into_inner());
        async move { answered.await.map(tonic::Response::new) }
    });
    let mut grpc = Grpc::new(ProstCodec::<A, Q>::default());
    grpc = grpc.max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX);
    grpc.unary(method, request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_there_and_whole() {
        let code = |text: &str| path("target_path", text).map(Path::to_owned).map_err(|status| status.code());
        assert_eq!(code("/a"), Ok("/a".into()));
        for wrong in ["", "a/b", &format!("/{}", "a".repeat(PATH_BYTES_MAX))] {
            assert_eq!(code(wrong), Err(Code::InvalidArgument), "{wrong}");
        }
    }

    #[test]
    fn a_filesystem_has_files_and_a_device_has_bytes() {
        let device = Usage { bytes: 7, filesystem: None };
        assert_eq!(shown(&device), [VolumeUsage { total: 7, unit: BYTES, ..VolumeUsage::default() }]);
        let free = crate::node::Free { available: 3, used: 4, files: 10, files_free: 9 };
        let shown = shown(&Usage { bytes: 8, filesystem: Some(free) });
        let bytes = VolumeUsage { available: 3, total: 8, used: 4, unit: BYTES };
        assert_eq!(shown, [bytes, VolumeUsage { available: 9, total: 10, used: 1, unit: INODES }]);
    }
}
