//! Volumes and operations: a tenant's own, or an operator's for any tenant.

use std::time::Duration;

use axum::extract::State;
use axum::http::header::LOCATION;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::provision::{Error, NewVolume, Operation, Provisioner, VolumeView};

use super::asked::{Asked, Asking};
use super::problem::Problem;
use super::views::{Listed, NewAttachment, OperationView, json};

/// How often a caller who waits is told anew. Chosen: a small part of what an operation takes.
const WAIT_PAUSE: Duration = Duration::from_millis(50);

type Answer = Result<Response, Problem>;

/// Begins to make a volume. 202: it is under way, as the operation at `Location`; 200: it has ended while it was waited for.
#[utoipa::path(post, path = "/v1/volumes", tag = "volumes", request_body = NewVolume,
    params(Asking, ("Request-Id" = Option<String>, Header)),
    responses((status = 202, body = OperationView), (status = 200, body = OperationView), (status = "4XX", body = Problem),
        (status = 507, body = Problem)))]
pub async fn create(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    let (owner, new, wait): (_, NewVolume, _) = (asked.owner()?, asked.body()?, asked.wait()?);
    let id = provisioner.create_volume(&asked.request, &owner, &new).await?;
    begun(&provisioner, &asked, id, wait).await
}

/// Lists the volumes of a tenant.
#[utoipa::path(get, path = "/v1/volumes", tag = "volumes", params(Asking),
    responses((status = 200, body = Listed<VolumeView>), (status = "4XX", body = Problem)))]
pub async fn volumes(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    let list = provisioner.volumes(&asked.owner()?, asked.after()?.as_ref()).await?;
    Ok(json(StatusCode::OK, &Listed::of(list, |volume: &VolumeView| volume.name.to_string())))
}

/// Shows a volume, with all that a host needs to attach it.
#[utoipa::path(get, path = "/v1/volumes/{name}", tag = "volumes", params(Asking, ("name" = String, Path)),
    responses((status = 200, body = VolumeView), (status = "4XX", body = Problem)))]
pub async fn volume(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    Ok(json(StatusCode::OK, &provisioner.volume(&asked.owner()?, &asked.name()?).await?))
}

/// Begins to delete a volume, by force also one that is attached. 202 and 200 as when one is made.
#[utoipa::path(delete, path = "/v1/volumes/{name}", tag = "volumes",
    params(Asking, ("name" = String, Path), ("Request-Id" = Option<String>, Header)),
    responses((status = 202, body = OperationView), (status = 200, body = OperationView), (status = "4XX", body = Problem)))]
pub async fn delete(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    let (owner, name, wait) = (asked.owner()?, asked.name()?, asked.wait()?);
    let id = provisioner.delete_volume(&asked.request, &owner, &name, asked.force()).await?;
    begun(&provisioner, &asked, id, wait).await
}

/// Writes down that a host is meant to use the volume, by force also in the place of another one.
#[utoipa::path(put, path = "/v1/volumes/{name}/attachment", tag = "volumes", request_body = NewAttachment,
    params(Asking, ("name" = String, Path), ("Request-Id" = Option<String>, Header)),
    responses((status = 200, body = VolumeView), (status = "4XX", body = Problem)))]
pub async fn attach(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    let (owner, name, new): (_, _, NewAttachment) = (asked.owner()?, asked.name()?, asked.body()?);
    let volume = provisioner.attach(&asked.request, &owner, &name, &new.host, asked.force()).await?;
    Ok(json(StatusCode::OK, &volume))
}

/// Writes down that the host of this attachment, or by force whichever it is, does not use the volume any more.
#[utoipa::path(delete, path = "/v1/volumes/{name}/attachment", tag = "volumes",
    params(Asking, ("name" = String, Path), ("Request-Id" = Option<String>, Header)),
    responses((status = 200, body = VolumeView), (status = "4XX", body = Problem)))]
pub async fn detach(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    let (owner, name, attachment) = (asked.owner()?, asked.name()?, asked.attachment()?);
    let volume = provisioner.detach(&asked.request, &owner, &name, attachment, asked.force()).await?;
    Ok(json(StatusCode::OK, &volume))
}

/// Shows an operation, after its end or when it was waited for.
#[utoipa::path(get, path = "/v1/operations/{id}", tag = "operations", params(Asking, ("id" = String, Path)),
    responses((status = 200, body = OperationView), (status = "4XX", body = Problem)))]
pub async fn operation(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    let (id, wait) = (asked.id()?, asked.wait()?);
    let operation = waited(&provisioner, asked.tenant(), id, wait).await?;
    Ok(json(StatusCode::OK, &OperationView::from(operation)))
}

async fn begun(provisioner: &Provisioner, asked: &Asked, id: Uuid, wait: u64) -> Answer {
    let operation = waited(provisioner, asked.tenant(), id, wait).await?;
    let status = if operation.ended.is_some() { StatusCode::OK } else { StatusCode::ACCEPTED };
    let mut response = json(status, &OperationView::from(operation));
    if let Ok(place) = HeaderValue::from_str(&format!("/v1/operations/{id}")) {
        response.headers_mut().insert(LOCATION, place);
    }
    Ok(response)
}

/// The operation when it has ended, or after that many seconds.
async fn waited(provisioner: &Provisioner, tenant: Option<Uuid>, id: Uuid, seconds: u64) -> Result<Operation, Error> {
    let until = Instant::now() + Duration::from_secs(seconds);
    loop {
        let operation = provisioner.operation(tenant, id).await?;
        if operation.ended.is_some() || Instant::now() >= until {
            return Ok(operation);
        }
        sleep(WAIT_PAUSE).await;
    }
}
