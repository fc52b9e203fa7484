//! The pool's policy, nodes and drives: the operator's.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;

use crate::provision::{Drive, Error, HolderOn, List, NewDrive, Node, NodePlace, Pool, Provisioner};

use super::asked::{Asked, Asking};
use super::problem::Problem;
use super::views::{DriveChange, DriveView, Listed, NodeChange, NodeView, gone, json};

type Answer = Result<Response, Problem>;

/// What holds for all drives.
#[utoipa::path(get, path = "/v1/pool", tag = "pool", responses((status = 200, body = Pool), (status = "4XX", body = Problem)))]
pub async fn show(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    asked.operator()?;
    Ok(json(StatusCode::OK, &provisioner.pool().await?))
}

/// Changes what holds for all drives. What was promised stays promised.
#[utoipa::path(put, path = "/v1/pool", tag = "pool", request_body = Pool,
    params(("Request-Id" = Option<String>, Header)), responses((status = 200, body = Pool), (status = "4XX", body = Problem)))]
pub async fn change(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    asked.operator()?;
    Ok(json(StatusCode::OK, &provisioner.set_pool(&asked.request, asked.body()?).await?))
}

/// Lists the nodes, each with how many holders of volumes are on its drives.
#[utoipa::path(get, path = "/v1/nodes", tag = "nodes", params(Asking),
    responses((status = 200, body = Listed<NodeView>), (status = "4XX", body = Problem)))]
pub async fn nodes(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    asked.operator()?;
    let list = provisioner.nodes(asked.after()?.as_ref()).await?;
    let items = list.items.into_iter().map(|(node, holders)| NodeView { node, holders }).collect();
    let list = List { items, more: list.more };
    Ok(json(StatusCode::OK, &Listed::of(list, |view: &NodeView| view.node.name.to_string())))
}

/// Shows a node.
#[utoipa::path(get, path = "/v1/nodes/{name}", tag = "nodes", params(("name" = String, Path)),
    responses((status = 200, body = Node), (status = "4XX", body = Problem)))]
pub async fn node(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    asked.operator()?;
    Ok(json(StatusCode::OK, &provisioner.node(&asked.name()?).await?))
}

/// Makes a node, or says anew where it stands.
#[utoipa::path(put, path = "/v1/nodes/{name}", tag = "nodes", request_body = NodePlace,
    params(("name" = String, Path), ("Request-Id" = Option<String>, Header)),
    responses((status = 200, body = Node), (status = "4XX", body = Problem)))]
pub async fn put_node(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    asked.operator()?;
    let place: NodePlace = asked.body()?;
    Ok(json(StatusCode::OK, &provisioner.put_node(&asked.request, &asked.name()?, &place).await?))
}

/// Takes all drives of a node into use, or drains them: their holders are replaced elsewhere. Drives that are out stay so.
#[utoipa::path(patch, path = "/v1/nodes/{name}", tag = "nodes", request_body = NodeChange,
    params(("name" = String, Path), ("Request-Id" = Option<String>, Header)),
    responses((status = 200, body = Listed<Drive>), (status = "4XX", body = Problem)))]
pub async fn change_node(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    asked.operator()?;
    let NodeChange { state } = asked.body()?;
    let items = provisioner.set_node_state(&asked.request, &asked.name()?, state).await?;
    Ok(json(StatusCode::OK, &Listed { items, next: None }))
}

/// Forgets a node that has no drives.
#[utoipa::path(delete, path = "/v1/nodes/{name}", tag = "nodes",
    params(("name" = String, Path), ("Request-Id" = Option<String>, Header)),
    responses((status = 204), (status = "4XX", body = Problem)))]
pub async fn remove_node(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    asked.operator()?;
    Ok(gone(provisioner.remove_node(&asked.request, &asked.name()?).await?))
}

/// Lists the drives, as they are recorded.
#[utoipa::path(get, path = "/v1/drives", tag = "drives", params(Asking),
    responses((status = 200, body = Listed<Drive>), (status = "4XX", body = Problem)))]
pub async fn drives(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    asked.operator()?;
    let list = provisioner.drives(asked.after()?.as_ref()).await?;
    Ok(json(StatusCode::OK, &Listed::of(list, |drive: &Drive| drive.name.to_string())))
}

/// Registers a drive: from now on nobody else may make namespaces there.
#[utoipa::path(post, path = "/v1/drives", tag = "drives", request_body = NewDrive,
    params(("Request-Id" = Option<String>, Header)),
    responses((status = 201, body = Drive), (status = "4XX", body = Problem), (status = 502, body = Problem)))]
pub async fn register(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    asked.operator()?;
    let new: NewDrive = asked.body()?;
    Ok(json(StatusCode::CREATED, &provisioner.register_drive(&asked.request, &new).await?))
}

/// Shows a drive, with what it says of itself now.
#[utoipa::path(get, path = "/v1/drives/{name}", tag = "drives", params(("name" = String, Path)),
    responses((status = 200, body = DriveView), (status = "4XX", body = Problem)))]
pub async fn drive(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    asked.operator()?;
    Ok(json(StatusCode::OK, &DriveView::from(provisioner.drive(&asked.name()?).await?)))
}

/// Takes a drive into use, drains it, or takes it out: gone for good, nothing is asked of it any more. The holders on a drive that
/// is draining or out are replaced elsewhere, until it is in use again. Or says where its target listens by now.
#[utoipa::path(patch, path = "/v1/drives/{name}", tag = "drives", request_body = DriveChange,
    params(("name" = String, Path), ("Request-Id" = Option<String>, Header)),
    responses((status = 200, body = Drive), (status = "4XX", body = Problem)))]
pub async fn change_drive(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    asked.operator()?;
    let (request, name) = (&asked.request, asked.name()?);
    let drive = match asked.body()? {
        DriveChange { state: Some(state), address: None } => provisioner.set_drive_state(request, &name, state).await?,
        DriveChange { state: None, address: Some(address) } => provisioner.move_drive(request, &name, &address).await?,
        _ => return Err(Error::Impossible("say either a state or an address".into()).into()),
    };
    Ok(json(StatusCode::OK, &drive))
}

/// Lists the holders of volumes on a drive, the first hundred of them, and why those are there still that are to go elsewhere.
#[utoipa::path(get, path = "/v1/drives/{name}/holders", tag = "drives", params(("name" = String, Path)),
    responses((status = 200, body = Listed<HolderOn>), (status = "4XX", body = Problem)))]
pub async fn holders(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    asked.operator()?;
    let items = provisioner.holders_on(&asked.name()?).await?;
    Ok(json(StatusCode::OK, &Listed { items, next: None }))
}

/// Forgets a drive on which no holder is.
#[utoipa::path(delete, path = "/v1/drives/{name}", tag = "drives",
    params(("name" = String, Path), ("Request-Id" = Option<String>, Header)),
    responses((status = 204), (status = "4XX", body = Problem)))]
pub async fn remove_drive(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    asked.operator()?;
    Ok(gone(provisioner.remove_drive(&asked.request, &asked.name()?).await?))
}
