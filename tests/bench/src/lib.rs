//! How fast Longarm is, each figure beside its reference measured in the same run.
//!
//! A suite measures with [`samples`], collects its figures in a [`table`] each of one kind, and hands the tables to a [`report`],
//! which prints them, writes the CSV file and plots them. What each table means stands in `docs/performance.md`.

pub mod growth;
pub mod guest;
pub mod native;
pub mod options;
pub mod place;
pub mod plot;
pub mod report;
pub mod samples;
pub mod table;
pub mod vmm;
