//! Volumes and operations: a tenant's own, or an operator's for any tenant.

use std::time::Duration;

use axum::extract::State;
use axum::http::header::LOCATION;
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use crate::provision::{
    Error, Limits, Name, NewSnapshot, NewVolume, Operation, Provisioner, Report, Restoring, SnapshotView, VolumeView,
    Wish,
};

use super::asked::{Asked, Asking};
use super::problem::Problem;
use super::views::{Growth, Listed, NewAttachment, OperationView, Replaced, json};

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

/// Begins to delete a volume, by force also one that is attached, with its snapshots, and in the place of what is under way. 202
/// and 200 as when one is made.
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

/// Says anew how much the volume may be used: all limits, those that are left out are none. The host that has it is told.
#[utoipa::path(put, path = "/v1/volumes/{name}/limits", tag = "volumes", request_body = Limits,
    params(Asking, ("name" = String, Path), ("Request-Id" = Option<String>, Header)),
    responses((status = 200, body = VolumeView), (status = "4XX", body = Problem)))]
pub async fn limit(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    let (owner, name, limits): (_, _, Limits) = (asked.owner()?, asked.name()?, asked.body()?);
    Ok(json(StatusCode::OK, &provisioner.set_limits(&asked.request, &owner, &name, limits).await?))
}

/// Begins to make the volume larger, also while a host has it attached. 202 and 200 as when one is made.
#[utoipa::path(post, path = "/v1/volumes/{name}/grow", tag = "volumes", request_body = Growth,
    params(Asking, ("name" = String, Path), ("Request-Id" = Option<String>, Header)),
    responses((status = 202, body = OperationView), (status = 200, body = OperationView), (status = "4XX", body = Problem),
        (status = 507, body = Problem)))]
pub async fn grow(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    let (owner, name, wait) = (asked.owner()?, asked.name()?, asked.wait()?);
    let Growth { bytes } = asked.body()?;
    let id = provisioner.grow_volume(&asked.request, &owner, &name, bytes).await?;
    begun(&provisioner, &asked, id, wait).await
}

/// Begins to replace the holder that a volume has on a drive by a new one on another drive, also while a host has the volume
/// attached: the operator's. 202 and 200 as when a volume is made.
#[utoipa::path(post, path = "/v1/volumes/{name}/replace", tag = "volumes", request_body = Replaced,
    params(Asking, ("name" = String, Path), ("Request-Id" = Option<String>, Header)),
    responses((status = 202, body = OperationView), (status = 200, body = OperationView), (status = "4XX", body = Problem),
        (status = 507, body = Problem)))]
pub async fn replace(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    asked.operator()?;
    let (owner, name, wait) = (asked.owner()?, asked.name()?, asked.wait()?);
    let Replaced { drive } = asked.body()?;
    let id = provisioner.replace_holder(&asked.request, &owner, &name, &drive).await?;
    begun(&provisioner, &asked, id, wait).await
}

/// Lists the snapshots of a volume, the oldest first.
#[utoipa::path(get, path = "/v1/volumes/{name}/snapshots", tag = "snapshots", params(Asking, ("name" = String, Path)),
    responses((status = 200, body = Listed<SnapshotView>), (status = "4XX", body = Problem)))]
pub async fn snapshots(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    let items = provisioner.snapshots(&asked.owner()?, &asked.name()?).await?;
    Ok(json(StatusCode::OK, &Listed { items, next: None }))
}

/// Begins to take a snapshot, also while a host has the volume attached. 202 and 200 as when a volume is made.
#[utoipa::path(post, path = "/v1/volumes/{name}/snapshots", tag = "snapshots", request_body = NewSnapshot,
    params(Asking, ("name" = String, Path), ("Request-Id" = Option<String>, Header)),
    responses((status = 202, body = OperationView), (status = 200, body = OperationView), (status = "4XX", body = Problem),
        (status = 507, body = Problem)))]
pub async fn take(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    let (owner, name, wait) = (asked.owner()?, asked.name()?, asked.wait()?);
    let new: NewSnapshot = asked.body()?;
    let id = provisioner.take_snapshot(&asked.request, &owner, &name, &new).await?;
    begun(&provisioner, &asked, id, wait).await
}

/// Shows a snapshot.
#[utoipa::path(get, path = "/v1/volumes/{name}/snapshots/{snapshot}", tag = "snapshots",
    params(Asking, ("name" = String, Path), ("snapshot" = String, Path)),
    responses((status = 200, body = SnapshotView), (status = "4XX", body = Problem)))]
pub async fn snapshot(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    let snapshot: Name = asked.snapshot()?;
    Ok(json(StatusCode::OK, &provisioner.snapshot(&asked.owner()?, &asked.name()?, &snapshot).await?))
}

/// Begins to delete a snapshot. Volumes that were made of it stay.
#[utoipa::path(delete, path = "/v1/volumes/{name}/snapshots/{snapshot}", tag = "snapshots",
    params(Asking, ("name" = String, Path), ("snapshot" = String, Path), ("Request-Id" = Option<String>, Header)),
    responses((status = 202, body = OperationView), (status = 200, body = OperationView), (status = "4XX", body = Problem)))]
pub async fn forget(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    let (owner, name, snapshot, wait) = (asked.owner()?, asked.name()?, asked.snapshot()?, asked.wait()?);
    let id = provisioner.delete_snapshot(&asked.request, &owner, &name, &snapshot).await?;
    begun(&provisioner, &asked, id, wait).await
}

/// Begins to put the volume, which no host has attached, back to one of its snapshots, in place: what it has that is in no snapshot
/// is lost, and all snapshots stay. What it has grown by since becomes zeroes. 202 and 200 as when a volume is made.
#[utoipa::path(post, path = "/v1/volumes/{name}/restore", tag = "snapshots", request_body = Restoring,
    params(Asking, ("name" = String, Path), ("Request-Id" = Option<String>, Header)),
    responses((status = 202, body = OperationView), (status = 200, body = OperationView), (status = "4XX", body = Problem)))]
pub async fn restore(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    let (owner, name, wait) = (asked.owner()?, asked.name()?, asked.wait()?);
    let Restoring { snapshot } = asked.body()?;
    let id = provisioner.restore_volume(&asked.request, &owner, &name, &snapshot).await?;
    begun(&provisioner, &asked, id, wait).await
}

/// What is wanted of the host that has this attachment, which asks every few seconds and says what it has done.
#[utoipa::path(post, path = "/v1/volumes/{name}/attachment/work", tag = "volumes", request_body = Report,
    params(Asking, ("name" = String, Path)),
    responses((status = 200, body = Wish), (status = "4XX", body = Problem)))]
pub async fn work(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    let (owner, name, report): (_, _, Report) = (asked.owner()?, asked.name()?, asked.body()?);
    let missing = || Error::Impossible("a host says by which attachment it asks: add ?attachment=ID".into());
    let attachment = asked.attachment()?.ok_or_else(missing)?;
    Ok(json(StatusCode::OK, &provisioner.ask(&owner, &name, attachment, &report).await?))
}

/// Lists operations by their ids: those that have not ended, and those that ended within a day.
#[utoipa::path(get, path = "/v1/operations", tag = "operations", params(Asking),
    responses((status = 200, body = Listed<OperationView>), (status = "4XX", body = Problem)))]
pub async fn operations(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    let list = provisioner.operations(asked.tenant()?, asked.after_id()?).await?;
    let items = list.items.into_iter().map(OperationView::from).collect();
    let list = crate::provision::List { items, more: list.more };
    Ok(json(StatusCode::OK, &Listed::of(list, |operation: &OperationView| operation.id.to_string())))
}

/// Shows an operation, after its end or when it was waited for.
#[utoipa::path(get, path = "/v1/operations/{id}", tag = "operations", params(Asking, ("id" = String, Path)),
    responses((status = 200, body = OperationView), (status = "4XX", body = Problem)))]
pub async fn operation(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    let (id, wait) = (asked.id()?, asked.wait()?);
    let operation = waited(&provisioner, asked.tenant()?, id, wait).await?;
    Ok(json(StatusCode::OK, &OperationView::from(operation)))
}

async fn begun(provisioner: &Provisioner, asked: &Asked, id: Uuid, wait: u64) -> Answer {
    let operation = waited(provisioner, asked.tenant()?, id, wait).await?;
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
