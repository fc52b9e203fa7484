//! Names the shared library for the dynamic linker: programs ask for the version of the interface, not of the product.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libyagura.so.0");
}
