//! Gauges of the pool, in the text format of Prometheus. The names in it are made of letters that need no escape there.

use std::fmt::Write;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use crate::provision::{Drive, Error, Provisioner, Tenant};

use super::asked::Asked;
use super::problem::Problem;

/// A family of samples: name, what it says, and what is sampled of each.
type Family<T> = (&'static str, &'static str, fn(&T) -> u64);

const DRIVES: [Family<Drive>; 3] = [
    ("yagura_drive_bytes", "Bytes of a drive", |drive| drive.total),
    ("yagura_drive_promised_bytes", "Bytes that holders of volumes may come to take", |drive| drive.promised),
    ("yagura_drive_holders", "Holders of volumes on a drive", |drive| drive.holders.into()),
];

const TENANTS: [Family<Tenant>; 3] = [
    ("yagura_tenant_bytes", "Bytes of a tenant's volumes", |tenant| tenant.bytes),
    ("yagura_tenant_volumes", "Volumes of a tenant", |tenant| tenant.volumes.into()),
    ("yagura_tenant_operations", "Operations of a tenant that have not ended", |tenant| tenant.pending.into()),
];

/// What Prometheus asks for, with an operator's token or one for figures.
pub async fn metrics(State(provisioner): State<Provisioner>, asked: Asked) -> Result<Response, Problem> {
    asked.figures()?;
    let mut text = String::new();
    let (drives, tenants) = (all_drives(&provisioner).await?, all_tenants(&provisioner).await?);
    samples(&mut text, "drive", &DRIVES, &drives, |drive| drive.name.as_str());
    samples(&mut text, "tenant", &TENANTS, &tenants, |tenant| tenant.name.as_str());
    Ok(([(CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response())
}

fn samples<T>(text: &mut String, label: &str, families: &[Family<T>], of: &[T], name: impl Fn(&T) -> &str) {
    for (family, help, sample) in families {
        let _ = writeln!(text, "# HELP {family} {help}\n# TYPE {family} gauge");
        for one in of {
            let _ = writeln!(text, "{family}{{{label}=\"{}\"}} {}", name(one), sample(one));
        }
    }
}

async fn all_drives(provisioner: &Provisioner) -> Result<Vec<Drive>, Error> {
    let mut found: Vec<Drive> = Vec::new();
    loop {
        let last = found.last().map(|drive| drive.name.clone());
        let list = provisioner.drives(last.as_ref()).await?;
        found.extend(list.items);
        if !list.more {
            return Ok(found);
        }
    }
}

async fn all_tenants(provisioner: &Provisioner) -> Result<Vec<Tenant>, Error> {
    let mut found: Vec<Tenant> = Vec::new();
    loop {
        let last = found.last().map(|tenant| tenant.name.clone());
        let list = provisioner.tenants(last.as_ref()).await?;
        found.extend(list.items);
        if !list.more {
            return Ok(found);
        }
    }
}
