//! Tenants and tokens: the operator's.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;

use crate::provision::{Error, Provisioner, Quota, Tenant, Whom};

use super::asked::{Asked, Asking};
use super::problem::Problem;
use super::views::{Listed, NewToken, TokenView, gone, json};

type Answer = Result<Response, Problem>;

/// Lists the tenants.
#[utoipa::path(get, path = "/v1/tenants", tag = "tenants", params(Asking),
    responses((status = 200, body = Listed<Tenant>), (status = "4XX", body = Problem)))]
pub async fn tenants(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    asked.operator()?;
    let list = provisioner.tenants(asked.after()?.as_ref()).await?;
    Ok(json(StatusCode::OK, &Listed::of(list, |tenant: &Tenant| tenant.name.to_string())))
}

/// Shows a tenant, to an operator or to the tenant itself.
#[utoipa::path(get, path = "/v1/tenants/{name}", tag = "tenants", params(("name" = String, Path)),
    responses((status = 200, body = Tenant), (status = "4XX", body = Problem)))]
pub async fn tenant(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    let name = asked.name()?;
    asked.operator_or(&name)?;
    Ok(json(StatusCode::OK, &provisioner.tenant(&name).await?))
}

/// Makes a tenant, or changes its limits.
#[utoipa::path(put, path = "/v1/tenants/{name}", tag = "tenants", request_body = Quota,
    params(("name" = String, Path), ("Request-Id" = Option<String>, Header)),
    responses((status = 200, body = Tenant), (status = "4XX", body = Problem)))]
pub async fn put_tenant(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    asked.operator()?;
    let quota: Quota = asked.body()?;
    Ok(json(StatusCode::OK, &provisioner.put_tenant(&asked.request, &asked.name()?, &quota).await?))
}

/// Forgets a tenant that has no volumes.
#[utoipa::path(delete, path = "/v1/tenants/{name}", tag = "tenants",
    params(("name" = String, Path), ("Request-Id" = Option<String>, Header)),
    responses((status = 204), (status = "4XX", body = Problem)))]
pub async fn remove_tenant(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    asked.operator()?;
    Ok(gone(provisioner.remove_tenant(&asked.request, &asked.name()?).await?))
}

/// Makes a token. It is said once: the catalogue has its hash alone, so that a Request-Id does not bring it back.
#[utoipa::path(post, path = "/v1/tokens", tag = "tokens", request_body = NewToken,
    responses((status = 201, body = TokenView), (status = "4XX", body = Problem)))]
pub async fn issue(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    asked.operator()?;
    let new: NewToken = asked.body()?;
    let whom = match (new.tenant, new.metrics) {
        (None, false) => Whom::Operator,
        (None, true) => Whom::Metrics,
        (Some(tenant), false) => Whom::Tenant(tenant),
        (Some(_), true) => {
            return Err(Error::Impossible("a token is a tenant's or for figures, not both".into()).into());
        }
    };
    let (token, secret) = provisioner.issue(whom, new.seconds).await?;
    let token = TokenView { token: Some(String::from_utf8_lossy(secret.expose()).into_owned()), ..token.into() };
    Ok(json(StatusCode::CREATED, &token))
}

/// Lists the tokens by their ids.
#[utoipa::path(get, path = "/v1/tokens", tag = "tokens", params(Asking),
    responses((status = 200, body = Listed<TokenView>), (status = "4XX", body = Problem)))]
pub async fn tokens(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    asked.operator()?;
    let list = provisioner.tokens(asked.after_id()?).await?;
    let items = list.items.into_iter().map(TokenView::from).collect();
    let list = crate::provision::List { items, more: list.more };
    Ok(json(StatusCode::OK, &Listed::of(list, |token: &TokenView| token.id.to_string())))
}

/// Lets nobody in by a token any more.
#[utoipa::path(delete, path = "/v1/tokens/{id}", tag = "tokens",
    params(("id" = String, Path), ("Request-Id" = Option<String>, Header)),
    responses((status = 204), (status = "4XX", body = Problem)))]
pub async fn revoke(State(provisioner): State<Provisioner>, asked: Asked) -> Answer {
    asked.operator()?;
    Ok(gone(provisioner.revoke_token(&asked.request, asked.id()?).await?))
}
