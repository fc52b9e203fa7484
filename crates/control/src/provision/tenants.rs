//! Tenants and their limits.

use serde::Deserialize;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::catalogue::{Change, Condition};

use super::error::Error;
use super::keys;
use super::name::Name;
use super::provisioner::{List, PAGE_RECORDS_MAX, Provisioner};
use super::records::Tenant;
use super::store::{Plan, Planning, Request, put};

/// Tenants, at most. Chosen: all are read when one is made.
pub const TENANTS_MAX: usize = 10_000;

/// What a tenant may have.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// Bytes of all volumes together, at most; none: no limit.
    pub quota_bytes: Option<u64>,
    /// Volumes, at most; none: no limit.
    pub quota_volumes: Option<u32>,
}

impl Provisioner {
    /// Makes a tenant, or changes its limits. A limit below what the tenant has takes nothing away.
    pub async fn put_tenant(&self, request: &Request, name: &Name, quota: &Quota) -> Result<Tenant, Error> {
        let plan = || -> Planning<'_, _> {
            Box::pin(async {
                let key = keys::tenant(name);
                let known = self.store.get::<Tenant>(key.clone()).await?;
                if known.is_none() && self.store.all::<Tenant>(keys::all("tenant")).await?.len() >= TENANTS_MAX {
                    return Err(Error::Limit { kind: "tenants", limit: TENANTS_MAX });
                }
                let condition =
                    known.as_ref().map_or_else(|| Condition::absent(key.clone()), |known| known.unchanged());
                let new = || Tenant {
                    id: Uuid::new_v4(),
                    name: name.clone(),
                    quota_bytes: None,
                    quota_volumes: None,
                    bytes: 0,
                    volumes: 0,
                    pending: 0,
                };
                let mut tenant = known.map_or_else(new, |known| known.record);
                (tenant.quota_bytes, tenant.quota_volumes) = (quota.quota_bytes, quota.quota_volumes);
                Ok(Plan { conditions: vec![condition], changes: vec![put(key, &tenant)?], answer: tenant })
            })
        };
        self.store.once(request, plan).await
    }

    /// One tenant.
    pub async fn tenant(&self, name: &Name) -> Result<Tenant, Error> {
        Ok(self.store.need(keys::tenant(name), name).await?.record)
    }

    /// The tenants behind one of that name.
    pub async fn tenants(&self, after: Option<&Name>) -> Result<List<Tenant>, Error> {
        let page = self.store.page(keys::all("tenant"), after.map(keys::tenant), PAGE_RECORDS_MAX).await?;
        Ok(List::of(page, |tenant| tenant))
    }

    /// Forgets a tenant that has no volumes. The tenant's tokens let nobody in any more.
    pub async fn remove_tenant(&self, request: &Request, name: &Name) -> Result<(), Error> {
        let plan = || -> Planning<'_, _> {
            Box::pin(async {
                let tenant = self.store.need::<Tenant>(keys::tenant(name), name).await?;
                if tenant.record.volumes > 0 {
                    let by = format!("{} volumes", tenant.record.volumes);
                    return Err(Error::InUse { kind: "tenant", name: name.clone(), by });
                }
                Ok(Plan {
                    conditions: vec![tenant.unchanged()],
                    changes: vec![Change::delete(keys::tenant(name))],
                    answer: (),
                })
            })
        };
        self.store.once(request, plan).await
    }
}
