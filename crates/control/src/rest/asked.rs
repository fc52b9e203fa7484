//! A request as all handlers see it: who asks, for what, and under which id. Whoever shows no token that is known gets no further.

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Query, RawPathParams, Request};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;
use uuid::Uuid;

use crate::provision::{self, Error, Malformed, Name, Owner, Provisioner, RequestId, Role};

use super::problem::Problem;
use super::rate::Rates;

/// Bytes of a body, at most. Chosen: many times the longest request.
const BODY_BYTES_MAX: usize = 64 << 10;
/// Seconds that a caller may wait for an operation in one request. Derived: half of a request's time.
pub(super) const WAIT_SECONDS_MAX: u64 = 30;
/// The header that names a request.
const REQUEST_ID: &str = "request-id";

/// What may stand behind the question mark, and in the header.
#[derive(Clone, Default, Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct Asking {
    /// Whose volumes, for an operator's token; a tenant's has the tenant's own.
    #[param(value_type = Option<String>)]
    tenant: Option<String>,
    /// A list begins behind this name.
    after: Option<String>,
    /// Seconds to wait for the operation's end, 30 at most.
    wait: Option<u64>,
    /// The attachment that ends, by its id.
    attachment: Option<String>,
    /// Also where somebody else is in the way.
    #[serde(default)]
    force: bool,
}

/// A request whose caller is known.
pub struct Asked {
    role: Role,
    asking: Asking,
    path: Vec<(String, String)>,
    body: Bytes,
    /// The request, to be done once.
    pub(super) request: provision::Request,
}

impl FromRequest<Provisioner> for Asked {
    type Rejection = Problem;

    async fn from_request(request: Request, provisioner: &Provisioner) -> Result<Asked, Problem> {
        let (mut parts, body) = request.into_parts();
        let role = caller(provisioner, &parts.headers).await?;
        if let (Some(tenant), Some(rates)) = (tenant_of(&role), parts.extensions.get::<Rates>())
            && !rates.take(tenant)
        {
            let detail = "the tenant asks too often: wait a moment, and ask less often";
            return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-requests", detail));
        }
        let query = Query::<Asking>::try_from_uri(&parts.uri);
        let bad = |what: String| Problem::new(StatusCode::BAD_REQUEST, "malformed", what);
        let Query(asking) = query.map_err(|fault| bad(format!("the query is not accepted: {fault}")))?;
        let params = RawPathParams::from_request_parts(&mut parts, provisioner).await;
        let params = params.map_err(|fault| bad(format!("the path is not accepted: {fault}")))?;
        let path = params.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        let body = axum::body::to_bytes(body, BODY_BYTES_MAX).await.map_err(|fault| {
            let detail = format!("the body is not accepted ({fault}): it has {BODY_BYTES_MAX} bytes at most");
            Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "body-too-long", detail)
        })?;
        let request = match parts.headers.get(REQUEST_ID) {
            None => provision::Request::unnamed(),
            Some(id) => {
                let id = RequestId::new(String::from_utf8_lossy(id.as_bytes()))?;
                // All that makes it this request and no other; no method or target has a line end.
                let head = format!("{}\n{}\n", parts.method, parts.uri);
                provision::Request::named(tenant_of(&role), &id, &[head.as_bytes(), &body].concat())
            }
        };
        Ok(Asked { role, asking, path, body, request })
    }
}

async fn caller(provisioner: &Provisioner, headers: &HeaderMap) -> Result<Role, Problem> {
    let missing = || {
        let detail = "there is no token: send \"Authorization: Bearer TOKEN\"";
        Problem::new(StatusCode::UNAUTHORIZED, "unauthenticated", detail)
    };
    let given = headers.get(AUTHORIZATION).ok_or_else(missing)?.to_str().map_err(|_| missing())?;
    let (scheme, token) = given.split_once(' ').ok_or_else(missing)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(missing());
    }
    Ok(provisioner.caller(token.trim()).await?)
}

fn uuid(text: &str) -> Result<Uuid, Malformed> {
    Uuid::try_parse(text).map_err(|_| Malformed::new("the id", text, "it is a UUID"))
}

fn tenant_of(role: &Role) -> Option<Uuid> {
    match role {
        Role::Operator | Role::Metrics => None,
        Role::Tenant { id, .. } => Some(*id),
    }
}

fn figures_alone() -> Error {
    Error::Forbidden { what: "anything but /metrics".into() }
}

impl Asked {
    /// Errors unless the operator asks.
    pub(super) fn operator(&self) -> Result<(), Error> {
        match &self.role {
            Role::Operator => Ok(()),
            Role::Metrics => Err(figures_alone()),
            Role::Tenant { name, .. } => {
                Err(Error::Forbidden { what: format!("tenant {name} what only an operator does") })
            }
        }
    }

    /// Errors unless the operator asks, or that tenant.
    pub(super) fn operator_or(&self, tenant: &Name) -> Result<(), Error> {
        match &self.role {
            Role::Tenant { name, .. } if name == tenant => Ok(()),
            _ => self.operator(),
        }
    }

    /// Errors unless who asks may read figures.
    pub(super) fn figures(&self) -> Result<(), Error> {
        if self.role == Role::Metrics { Ok(()) } else { self.operator() }
    }

    /// The id of the tenant that asks; none: the operator, who may see all.
    pub(super) fn tenant(&self) -> Result<Option<Uuid>, Error> {
        if self.role == Role::Metrics { Err(figures_alone()) } else { Ok(tenant_of(&self.role)) }
    }

    /// Whose volumes are meant, and that the caller may have to do with them.
    pub(super) fn owner(&self) -> Result<Owner, Error> {
        let named = self.asking.tenant.as_deref().map(Name::new).transpose()?;
        match (&self.role, named) {
            (Role::Metrics, _) => Err(figures_alone()),
            (Role::Operator, Some(name)) => Ok(Owner { name, id: None }),
            (Role::Operator, None) => Err(Error::Impossible("whose volumes? add ?tenant=NAME or --tenant NAME".into())),
            (Role::Tenant { name, id }, named) if named.as_ref().is_none_or(|named| named == name) => {
                Ok(Owner { name: name.clone(), id: Some(*id) })
            }
            (Role::Tenant { name, .. }, _) => {
                Err(Error::Forbidden { what: format!("tenant {name} to have to do with another tenant's volumes") })
            }
        }
    }

    /// The name in the path.
    pub(super) fn name(&self) -> Result<Name, Malformed> {
        Name::new(self.part("name"))
    }

    /// The snapshot in the path.
    pub(super) fn snapshot(&self) -> Result<Name, Malformed> {
        Name::new(self.part("snapshot"))
    }

    /// The id in the path.
    pub(super) fn id(&self) -> Result<Uuid, Malformed> {
        let text = self.part("id");
        Uuid::try_parse(text).map_err(|_| Malformed::new("the id", text, "it is a UUID, as it was given out"))
    }

    fn part(&self, name: &str) -> &str {
        self.path.iter().find(|(found, _)| found == name).map_or("", |(_, value)| value)
    }

    /// The name behind which a list begins.
    pub(super) fn after(&self) -> Result<Option<Name>, Malformed> {
        self.asking.after.as_deref().map(Name::new).transpose()
    }

    /// The id behind which a list begins.
    pub(super) fn after_id(&self) -> Result<Option<Uuid>, Malformed> {
        self.asking.after.as_deref().map(uuid).transpose()
    }

    /// The attachment in the query.
    pub(super) fn attachment(&self) -> Result<Option<Uuid>, Malformed> {
        self.asking.attachment.as_deref().map(uuid).transpose()
    }

    /// Whether to do it where somebody else is in the way.
    pub(super) fn force(&self) -> bool {
        self.asking.force
    }

    /// Seconds to wait for an operation.
    pub(super) fn wait(&self) -> Result<u64, Error> {
        match self.asking.wait.unwrap_or(0) {
            seconds if seconds <= WAIT_SECONDS_MAX => Ok(seconds),
            seconds => Err(Error::Impossible(format!("wait is {seconds}: it has {WAIT_SECONDS_MAX} seconds at most"))),
        }
    }

    /// The body, which is JSON of that form.
    pub(super) fn body<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        serde_json::from_slice(&self.body).map_err(|fault| {
            let detail = format!("the body is not what is expected ({fault}): see /openapi.json");
            Problem::new(StatusCode::BAD_REQUEST, "malformed", detail)
        })
    }
}
