//! Setters of options that callers build step by step.

/// Defines methods that take the options by value and return them with one field changed: `Options::new().threads(2)`.
macro_rules! setters {
    ($($field:ident: $type:ty,)+) => {
        $(
            #[doc = concat!("Sets `", stringify!($field), "`.")]
            #[must_use]
            pub fn $field(mut self, $field: $type) -> Self {
                self.$field = $field.into();
                self
            }
        )+
    };
}

pub(crate) use setters;
