//! What is wrong with a configuration.

/// A value that cannot be used: which option it is, what is wrong with it, and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{option}: {wrong}; allowed: {allowed}")]
pub struct OptionError {
    /// The option, as the command line spells it (`--memory`).
    pub option: String,
    /// What is wrong, the value included.
    pub wrong: String,
    /// What would be right.
    pub allowed: String,
}

impl OptionError {
    /// Says that `option` has a `wrong` value and what is `allowed`.
    pub fn new(option: &str, wrong: impl Into<String>, allowed: impl Into<String>) -> Self {
        Self {
            option: option.into(),
            wrong: wrong.into(),
            allowed: allowed.into(),
        }
    }
}
