//! Option values that are lists of words and `key=value` pairs, separated by commas.

use std::str::FromStr;

use crate::OptionError;

/// One element of an option's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Item<'a> {
    /// The word before `=`.
    pub key: &'a str,
    /// What follows `=`, if there is one.
    pub value: Option<&'a str>,
}

/// An option's value being taken apart.
pub(crate) struct Items<'a> {
    option: &'static str,
    allowed: &'static str,
    text: &'a str,
}

impl<'a> Items<'a> {
    /// `allowed` describes the whole value, for error messages.
    pub fn new(option: &'static str, allowed: &'static str, text: &'a str) -> Self {
        Self {
            option,
            allowed,
            text,
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = Item<'a>> + use<'a> {
        self.text.split(',').map(|part| match part.split_once('=') {
            Some((key, value)) => Item {
                key,
                value: Some(value),
            },
            None => Item {
                key: part,
                value: None,
            },
        })
    }

    pub fn error(&self, wrong: impl Into<String>) -> OptionError {
        OptionError::new(self.option, wrong, self.allowed)
    }

    /// The error for a word that the option does not know.
    pub fn unknown(&self, item: Item<'_>) -> OptionError {
        self.error(match item.key {
            "" => format!("empty element in '{}'", self.text),
            key => format!("unknown '{key}' in '{}'", self.text),
        })
    }

    /// The value of `item`, which must have a non-empty one.
    pub fn value(&self, item: Item<'a>) -> Result<&'a str, OptionError> {
        item.value
            .filter(|v| !v.is_empty())
            .ok_or_else(|| self.error(format!("'{}' has no value", item.key)))
    }

    /// The value of `item`, read as a `T`.
    pub fn parse<T: FromStr>(&self, item: Item<'a>) -> Result<T, OptionError> {
        let value = self.value(item)?;
        value
            .parse()
            .map_err(|_| self.error(format!("'{value}' is no value for '{}'", item.key)))
    }

    /// `on` or `off`.
    pub fn switch(&self, item: Item<'a>) -> Result<bool, OptionError> {
        match item.value {
            Some("on") => Ok(true),
            Some("off") => Ok(false),
            _ => Err(self.error(format!("'{}' must be 'on' or 'off'", item.key))),
        }
    }
}
