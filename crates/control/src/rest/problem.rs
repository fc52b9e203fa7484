//! What went wrong, as RFC 9457 has it: a `type` for programs, a sentence for people, the status of HTTP.

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::catalogue;
use crate::provision::{Error, Malformed, Name, RecordError};

/// What every `type` begins with: a name (RFC 4151), not an address.
const TYPES: &str = "tag:yagura.io,2026:";
/// Seconds after which one may ask again. Chosen: an election of etcd, or the time in which an operation ends.
const RETRY_SECONDS: &str = "2";

/// What a drive lacks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Lack {
    /// The drive.
    pub drive: Name,
    /// The rule that it fails, in a word.
    pub rule: String,
    /// The rule, in a sentence.
    pub says: String,
}

/// A refusal.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// What kind of problem it is; never changes for the same kind.
    #[serde(rename = "type")]
    pub kind: String,
    /// The kind in words.
    pub title: String,
    /// The status of HTTP.
    pub status: u16,
    /// What is wrong, and what to do.
    pub detail: String,
    /// Of what is not there: what kind of thing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub what: Option<Box<str>>,
    /// Of a volume that can't be placed, or can't grow: what each drive lacks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drives: Vec<Lack>,
}

impl Problem {
    /// A problem of that kind.
    pub fn new(status: StatusCode, kind: &str, detail: impl Into<String>) -> Problem {
        Problem {
            kind: format!("{TYPES}{kind}"),
            title: kind.replace('-', " "),
            status: status.as_u16(),
            detail: detail.into(),
            what: None,
            drives: Vec::new(),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"yagura\""));
        }
        if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            headers.insert(RETRY_AFTER, HeaderValue::from_static(RETRY_SECONDS));
        }
        response
    }
}

impl From<Malformed> for Problem {
    fn from(error: Malformed) -> Problem {
        Error::from(error).into()
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        let (status, kind) = class(&error);
        if status.is_server_error() && status != StatusCode::INSUFFICIENT_STORAGE {
            tracing::warn!(%error, "a request failed");
        }
        let mut problem = Problem::new(status, kind, error.to_string());
        if let Error::NotFound { kind, .. } = &error {
            problem.what = Some((*kind).into());
        }
        let lacks = match error {
            Error::NoRoom(refusal) => refusal.drives,
            Error::NoRoomToGrow { drives, .. } => drives,
            _ => Vec::new(),
        };
        if !lacks.is_empty() {
            let lack = |(drive, rule): (Name, crate::provision::Rule)| Lack {
                drive,
                rule: rule.word().into(),
                says: rule.to_string(),
            };
            problem.drives = lacks.into_iter().map(lack).collect();
        }
        problem
    }
}

fn class(error: &Error) -> (StatusCode, &'static str) {
    match error {
        Error::Malformed(_) => (StatusCode::BAD_REQUEST, "malformed"),
        Error::Impossible(_) => (StatusCode::BAD_REQUEST, "impossible"),
        Error::Unauthenticated => (StatusCode::UNAUTHORIZED, "unauthenticated"),
        Error::Forbidden { .. } => (StatusCode::FORBIDDEN, "forbidden"),
        Error::NotFound { .. } => (StatusCode::NOT_FOUND, "not-found"),
        Error::Exists { .. } => (StatusCode::CONFLICT, "exists"),
        Error::Registered { .. } => (StatusCode::CONFLICT, "drive-registered"),
        Error::HasNamespaces { .. } => (StatusCode::CONFLICT, "drive-has-namespaces"),
        Error::InUse { .. } => (StatusCode::CONFLICT, "in-use"),
        Error::Attached { .. } | Error::AttachedStill { .. } => (StatusCode::CONFLICT, "attached"),
        Error::NotAttached { .. } => (StatusCode::CONFLICT, "not-attached"),
        Error::Part { .. } => (StatusCode::CONFLICT, "part-of-a-snapshot"),
        Error::Busy { .. } => (StatusCode::CONFLICT, "busy"),
        Error::RequestReused { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "request-id-reused"),
        Error::TooMany { .. } => (StatusCode::TOO_MANY_REQUESTS, "too-many-operations"),
        Error::NoRoom(_) | Error::NoRoomToGrow { .. } => (StatusCode::INSUFFICIENT_STORAGE, "no-room"),
        Error::Quota { .. } => (StatusCode::INSUFFICIENT_STORAGE, "quota-exceeded"),
        Error::Limit { .. } => (StatusCode::INSUFFICIENT_STORAGE, "limit-reached"),
        Error::Drive { .. } => (StatusCode::BAD_GATEWAY, "drive-failed"),
        Error::Contended => (StatusCode::SERVICE_UNAVAILABLE, "contended"),
        Error::Record { source: RecordError::Newer { .. }, .. } => {
            (StatusCode::INTERNAL_SERVER_ERROR, "later-version-needed")
        }
        Error::Record { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "record-damaged"),
        Error::Catalogue(catalogue::Error::OutcomeUnknown { .. }) => {
            (StatusCode::SERVICE_UNAVAILABLE, "outcome-unknown")
        }
        Error::Catalogue(catalogue::Error::Full { .. }) => (StatusCode::INSUFFICIENT_STORAGE, "catalogue-full"),
        Error::Catalogue(_) => (StatusCode::SERVICE_UNAVAILABLE, "catalogue-unavailable"),
    }
}
