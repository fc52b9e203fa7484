//! Tokens: who a caller is. The catalogue has a hash of each, so that who reads the catalogue can't use them.
//!
//! A token is `yagura_ID_SECRET`: the id finds the record, the secret has 256 random bits and is compared by its hash in a time
//! that tells nothing. Random bits need no slow hash: nobody can try them all.

use std::fmt::Write;

use tls::Secret;
use uuid::Uuid;

use crate::catalogue::{Change, Condition};

use super::error::Error;
use super::keys;
use super::name::Name;
use super::provisioner::{List, PAGE_RECORDS_MAX, Provisioner};
use super::records::{Role, Tenant, Token};
use super::store::{Plan, Planning, Request, hex, now, put};

/// Tokens, at most. Chosen: all are read when one is made.
pub const TOKENS_MAX: usize = 10_000;
/// Seconds for which a token that has an end lets in, at most. Chosen: ten years.
const TOKEN_SECONDS_MAX: u64 = 10 * 365 * 24 * 60 * 60;
/// Bytes of a token's secret. Chosen: as many as of its hash.
const SECRET_BYTES: usize = 32;
/// What a token begins with, so that those who look for lost secrets find it.
const MARK: &str = "yagura";

/// Whom a token is to let in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Whom {
    /// Who may do everything.
    Operator,
    /// Who may read figures, and nothing else.
    Metrics,
    /// The tenant of this name.
    Tenant(Name),
}

impl Provisioner {
    /// A new token for the operator, or for the tenant of this name, until it is revoked.
    pub async fn issue_token(&self, tenant: Option<&Name>) -> Result<(Token, Secret), Error> {
        self.issue(tenant.map_or(Whom::Operator, |tenant| Whom::Tenant(tenant.clone())), None).await
    }

    /// A new token that lets in for so many seconds. It can't be had again: only its hash is kept.
    pub async fn issue(&self, whom: Whom, seconds: Option<u64>) -> Result<(Token, Secret), Error> {
        if seconds.is_some_and(|seconds| seconds == 0 || seconds > TOKEN_SECONDS_MAX) {
            let why = format!("a token for {seconds:?} seconds: it is for 1 to {TOKEN_SECONDS_MAX}, or has no end");
            return Err(Error::Impossible(why));
        }
        let mut bytes = [0; SECRET_BYTES];
        openssl::rand::rand_bytes(&mut bytes)
            .map_err(|fault| Error::Impossible(format!("no random bytes can be had ({fault})")))?;
        let secret = hex(&bytes);
        let digest = hex(&openssl::sha::sha256(secret.as_bytes()));
        let id = Uuid::new_v4();
        let plan = || -> Planning<'_, _> {
            Box::pin(async {
                if self.store.all::<Token>(keys::all("token")).await?.len() >= TOKENS_MAX {
                    return Err(Error::Limit { kind: "tokens", limit: TOKENS_MAX });
                }
                let mut conditions = vec![Condition::absent(keys::token(id))];
                let role = match &whom {
                    Whom::Operator => Role::Operator,
                    Whom::Metrics => Role::Metrics,
                    Whom::Tenant(name) => {
                        let tenant = self.store.need::<Tenant>(keys::tenant(name), name).await?;
                        conditions.push(tenant.unchanged());
                        Role::Tenant { name: name.clone(), id: tenant.record.id }
                    }
                };
                let token = Token {
                    id,
                    role,
                    digest: digest.clone(),
                    created: now(),
                    ends: seconds.map(|seconds| now() + seconds),
                };
                Ok(Plan { conditions, changes: vec![put(keys::token(id), &token)?], answer: token })
            })
        };
        // Nobody sends it again: the answer that would be remembered has no secret.
        let token = self.store.once(&Request::unnamed(), plan).await?;
        let mut text = String::with_capacity(MARK.len() + 2 + 32 + 2 * SECRET_BYTES);
        let _ = write!(text, "{MARK}_{}_{secret}", id.simple());
        Ok((token, Secret::new(text.into_bytes())))
    }

    /// Who shows this token.
    pub async fn caller(&self, token: &str) -> Result<Role, Error> {
        let parts = token.strip_prefix(MARK).and_then(|rest| rest.strip_prefix('_')?.split_once('_'));
        let Some((id, secret)) = parts else { return Err(Error::Unauthenticated) };
        let id = Uuid::try_parse(id).map_err(|_| Error::Unauthenticated)?;
        let known = self.store.get::<Token>(keys::token(id)).await?.ok_or(Error::Unauthenticated)?.record;
        let digest = hex(&openssl::sha::sha256(secret.as_bytes()));
        if !Secret::new(known.digest.into_bytes()).is(digest.as_bytes()) {
            return Err(Error::Unauthenticated);
        }
        if known.ends.is_some_and(|ends| now() >= ends) {
            return Err(Error::Unauthenticated);
        }
        if let Role::Tenant { name, id } = &known.role {
            let tenant = self.store.get::<Tenant>(keys::tenant(name)).await?;
            if tenant.is_none_or(|tenant| tenant.record.id != *id) {
                return Err(Error::Unauthenticated);
            }
        }
        Ok(known.role)
    }

    /// The tokens behind the one of that id; their secrets are not known.
    pub async fn tokens(&self, after: Option<Uuid>) -> Result<List<Token>, Error> {
        let page = self.store.page(keys::all("token"), after.map(keys::token), PAGE_RECORDS_MAX).await?;
        Ok(List::of(page, |token| token))
    }

    /// Lets nobody in by this token any more.
    pub async fn revoke_token(&self, request: &Request, id: Uuid) -> Result<(), Error> {
        let plan = || -> Planning<'_, _> {
            Box::pin(async {
                let token = self.store.need::<Token>(keys::token(id), id).await?;
                Ok(Plan {
                    conditions: vec![token.unchanged()],
                    changes: vec![Change::delete(keys::token(id))],
                    answer: (),
                })
            })
        };
        self.store.once(request, plan).await
    }
}
