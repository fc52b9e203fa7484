//! What is answered, where it is not a record itself.

use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::provision::{
    Drive, DriveStatus, List, Name, Namespace, Node, Nqn, Operation, OperationKind, OperationState, Reason, Role, Token,
};

/// A part of a list.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct Listed<T> {
    /// In the order of their names.
    pub items: Vec<T>,
    /// What to give as `after` for those behind; none: that was all.
    pub next: Option<String>,
}

impl<T> Listed<T> {
    /// The list, with the name that each item is listed by.
    pub fn of(list: List<T>, name: impl Fn(&T) -> String) -> Listed<T> {
        let next = if list.more { list.items.last().map(name) } else { None };
        Listed { items: list.items, next }
    }
}

/// What is wanted of a drive: one of both.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DriveChange {
    /// The state that it gets.
    pub state: Option<crate::provision::DriveState>,
    /// Where its target listens by now.
    pub address: Option<crate::provision::Address>,
}

/// What is wanted of all drives of a node.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NodeChange {
    /// The state that they get.
    pub state: crate::provision::DriveState,
}

/// A node with what is on its drives.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct NodeView {
    /// What is recorded of it.
    #[serde(flatten)]
    pub node: Node,
    /// Holders of volumes on its drives.
    pub holders: u32,
}

/// Which holder of a volume is to be replaced.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Replaced {
    /// That on this drive.
    pub drive: Name,
}

/// A drive with what it says of itself.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct DriveView {
    /// What is recorded of it.
    #[serde(flatten)]
    pub drive: Drive,
    /// Bytes that it says are free; none: it says nothing.
    pub free: Option<u64>,
    /// Why it says nothing.
    pub fault: Option<String>,
    /// Namespaces that are there and that no record names. They are left alone.
    pub unrecorded: Vec<Namespace>,
}

impl From<DriveStatus> for DriveView {
    fn from(status: DriveStatus) -> DriveView {
        let DriveStatus { drive, look, unrecorded } = status;
        let free = look.as_ref().ok().map(|look| look.free);
        DriveView { drive, free, fault: look.err(), unrecorded }
    }
}

/// A long operation.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct OperationView {
    /// Its own.
    pub id: Uuid,
    /// What it does.
    pub kind: OperationKind,
    /// Whose volume.
    pub tenant: Name,
    /// Which volume.
    pub volume: Name,
    /// Which snapshot.
    pub snapshot: Option<Name>,
    /// How far it is.
    pub state: OperationState,
    /// Steps that are done.
    pub done: u32,
    /// Steps that there are.
    pub steps: u32,
    /// What it waits for.
    pub waits: Option<String>,
    /// Why it failed, or is being undone.
    pub failure: Option<String>,
    /// The same in a word, where there is one for it.
    #[serde(default)]
    pub reason: Option<Reason>,
    /// When it was asked for, in seconds of the Unix epoch.
    pub began: u64,
    /// When it ended.
    pub ended: Option<u64>,
}

impl From<Operation> for OperationView {
    fn from(operation: Operation) -> OperationView {
        let Operation { id, kind, tenant, volume, snapshot, state, done, steps, waits, reason, began, ended, .. } =
            operation;
        let failure = operation.undo;
        OperationView { id, kind, tenant, volume, snapshot, state, done, steps, waits, failure, reason, began, ended }
    }
}

/// Who a token is to be for.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    /// The tenant; none: an operator.
    pub tenant: Option<Name>,
    /// For who reads figures, and nothing else.
    #[serde(default)]
    pub metrics: bool,
    /// Seconds for which it lets in; none: until it is revoked.
    #[serde(default)]
    pub seconds: Option<u64>,
}

/// A token.
#[derive(Serialize, Deserialize, ToSchema)]
pub struct TokenView {
    /// Its name, which is no secret.
    pub id: Uuid,
    /// The tenant that it lets in; none: an operator, or who reads figures.
    pub tenant: Option<Name>,
    /// Whether it is for figures alone.
    pub metrics: bool,
    /// Since when, in seconds of the Unix epoch.
    pub created: u64,
    /// Until when it lets in.
    pub ends: Option<u64>,
    /// The token itself, said once, when it is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

impl From<Token> for TokenView {
    fn from(token: Token) -> TokenView {
        let tenant = match token.role {
            Role::Operator | Role::Metrics => None,
            Role::Tenant { ref name, .. } => Some(name.clone()),
        };
        let metrics = token.role == Role::Metrics;
        TokenView { id: token.id, tenant, metrics, created: token.created, ends: token.ends, token: None }
    }
}

/// How large a volume is to be.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Growth {
    /// Its size: a multiple of 4,096.
    pub bytes: u64,
}

/// Which host a volume is attached to.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewAttachment {
    /// The host.
    pub host: Nqn,
}

/// There is nothing to say but that it was done.
pub fn gone(_done: ()) -> Response {
    StatusCode::NO_CONTENT.into_response()
}

/// JSON of that status.
pub fn json(status: StatusCode, answer: &impl Serialize) -> Response {
    match serde_json::to_vec(answer) {
        Ok(body) => {
            let kind = [(CONTENT_TYPE, HeaderValue::from_static("application/json"))];
            (status, kind, Body::from(body)).into_response()
        }
        Err(fault) => (StatusCode::INTERNAL_SERVER_ERROR, fault.to_string()).into_response(),
    }
}
