//! All routes, with the document that describes them.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use tokio::time::timeout;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{InfoBuilder, OpenApi, OpenApiBuilder, SecurityRequirement};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::provision::Provisioner;

use super::asked::WAIT_SECONDS_MAX;
use super::problem::Problem;
use super::rate::Rates;
use super::views::json;
use super::{metrics, people, pool, volumes};

/// How long a request may take, its body and what it waits for included. Derived: twice what a caller may wait for.
pub(super) const REQUEST_TIME: Duration = Duration::from_secs(2 * WAIT_SECONDS_MAX);

fn described() -> OpenApiRouter<Provisioner> {
    let info = InfoBuilder::new().title("Yagura").version("1").description(Some(
        "Volumes by name: nodes, drives, tenants, placement, operations. Every request that changes something takes a \
         Request-Id: the same id with the same request gets the same answer, and is done once. A refusal is \
         application/problem+json (RFC 9457).",
    ));
    let mut described = OpenApiBuilder::new().info(info.build()).build();
    let bearer = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
    described.components.get_or_insert_default().add_security_scheme("token", bearer);
    described.security = Some(vec![SecurityRequirement::new("token", Vec::<String>::new())]);
    OpenApiRouter::with_openapi(described)
        .routes(routes!(pool::show, pool::change))
        .routes(routes!(pool::nodes))
        .routes(routes!(pool::node, pool::put_node, pool::change_node, pool::remove_node))
        .routes(routes!(pool::drives, pool::register))
        .routes(routes!(pool::drive, pool::change_drive, pool::remove_drive))
        .routes(routes!(pool::holders))
        .routes(routes!(people::tenants))
        .routes(routes!(people::tenant, people::put_tenant, people::remove_tenant))
        .routes(routes!(people::tokens, people::issue))
        .routes(routes!(people::revoke))
        .routes(routes!(volumes::volumes, volumes::create))
        .routes(routes!(volumes::volume, volumes::delete))
        .routes(routes!(volumes::attach, volumes::detach))
        .routes(routes!(volumes::limit))
        .routes(routes!(volumes::grow))
        .routes(routes!(volumes::replace))
        .routes(routes!(volumes::snapshots, volumes::take))
        .routes(routes!(volumes::snapshot, volumes::forget))
        .routes(routes!(volumes::restore))
        .routes(routes!(volumes::work))
        .routes(routes!(volumes::operations))
        .routes(routes!(volumes::operation))
}

/// The document of what can be asked.
pub fn document() -> OpenApi {
    described().into_openapi()
}

/// What serves the provisioner.
pub(super) fn router(provisioner: Provisioner) -> Router {
    let (router, document) = described().split_for_parts();
    let document = move || std::future::ready(json(StatusCode::OK, &document));
    router
        .route("/openapi.json", get(document))
        .route("/healthz", get(health))
        .route("/metrics", get(metrics::metrics))
        .fallback(nothing)
        .method_not_allowed_fallback(not_so)
        .layer(Extension(Rates::default()))
        .layer(from_fn(in_time))
        .with_state(provisioner)
}

/// Whether the catalogue answers.
async fn health(State(provisioner): State<Provisioner>) -> Response {
    match provisioner.pool().await {
        Ok(_) => "ok\n".into_response(),
        Err(error) => Problem::from(error).into_response(),
    }
}

async fn nothing() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "not-found", "there is nothing at this address: see /openapi.json")
}

async fn not_so() -> Problem {
    let detail = "this address does not take this method: see /openapi.json";
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method-not-allowed", detail)
}

async fn in_time(request: Request, next: Next) -> Response {
    let late = || {
        let detail = format!("the request was not done within {REQUEST_TIME:?}: ask again, with the same Request-Id");
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "late", detail).into_response()
    };
    timeout(REQUEST_TIME, next.run(request)).await.unwrap_or_else(|_| late())
}
