//! The provisioner over HTTP: JSON, tokens, TLS. The document of what can be asked (OpenAPI) is made of the handlers themselves.
//!
//! Use: [`Server::new`], then [`Server::serve`] with a listener.

mod api;
mod asked;
mod metrics;
mod people;
mod pool;
mod problem;
mod rate;
mod server;
mod views;
mod volumes;

pub use api::document;
pub use server::{Server, ServerError, ServerOptions};
