//! The macros that keep a table of codes and the names people know them by in one place.

/// Makes associated constants of a newtype and its `Display`: the name where there is one, else the number.
macro_rules! codes {
    ($type:ident($repr:ty), $what:literal; $($name:ident = $value:expr, $text:literal;)+) => {
        impl $type {
            $(#[doc = $text] pub const $name: $type = $type($value);)+

            /// The specification's name, where the code is known.
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)+
                    _ => None,
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!($what, " {:#04x}"), self.0),
                }
            }
        }
    };
}

/// States a structure's size where it is defined.
macro_rules! size {
    ($($type:ty = $bytes:expr),+ $(,)?) => {
        $(const _: () = assert!(std::mem::size_of::<$type>() == $bytes);)+
    };
}

pub(crate) use {codes, size};
