//! The store and files for Python, as the package's own code uses them: `yagura/_client.py`, `yagura/_aio.py` and
//! `yagura/_fsspec.py` make the faces of it.
//!
//! Every operation is one method with a last argument `done`: `None` waits, with the interpreter's lock given up; else it
//! returns at once, and `done(result, error)` is called by a thread of ours that is no reactor ([`notifier`]).

mod convert;
mod core;
mod files;
mod notifier;

// Nothing here calls these. Without them a build of this package alone would ask its libraries' libraries for less than one of the
// whole workspace does, and the gate would compile everything below `client` once more for it.
use {getrandom as _, serde_core as _, tracing_core as _};

use pyo3::prelude::*;

/// The store's core; use `yagura.Client` or `yagura.AsyncClient`.
#[pymodule]
mod _yagura {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::core::Core;
    #[pymodule_export]
    use crate::files::Files;

    /// Called before the interpreter ends.
    #[pyfunction]
    fn end_callbacks(py: Python<'_>) {
        crate::notifier::end_all(py);
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.py().import("atexit")?.call_method1("register", (module.getattr("end_callbacks")?,))?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        module.add("KEY_BYTES_MAX", client::KEY_BYTES_MAX)?;
        module.add("VALUE_BYTES_MAX", client::VALUE_BYTES_MAX)
    }
}
