//! `exuvia datastore …`: what people do about a move of kinds to another API group. The operator carries it out.

mod args;
mod conflicts;
mod crd_paths;
mod field_path;
mod lease;
pub(super) mod manifest;
mod migrations;
mod plan;
mod read_paths;
mod render;
mod result_types;
mod schema;
mod start;
pub(super) mod status;
mod steer;
mod validate;
mod verify;
pub(super) mod watch;

use std::process::ExitCode;

pub use self::args::*;
use super::{block_on, look};

pub(super) fn run(command: &DatastoreCommand) -> anyhow::Result<ExitCode> {
    match command {
        DatastoreCommand::Validate(args) if args.cluster => look(validate::with_cluster(args)),
        DatastoreCommand::Validate(args) => validate::offline(args),
        DatastoreCommand::Plan(args) => look(plan::run(args)),
        DatastoreCommand::Start(args) => block_on(start::run(args)),
        // A signal ends a watch, and that is success.
        DatastoreCommand::Status(args) if args.watch => block_on(status::run(args)),
        DatastoreCommand::Status(args) => look(status::run(args)),
        DatastoreCommand::Conflicts(args) => look(conflicts::run(args)),
        DatastoreCommand::Verify(args) => look(verify::run(args)),
        DatastoreCommand::Cutover(args) => block_on(steer::cutover(args)),
        DatastoreCommand::Abort(args) => block_on(steer::abort(args)),
        DatastoreCommand::Retry(args) => block_on(steer::retry(args)),
        DatastoreCommand::Thaw(args) => block_on(steer::thaw(args)),
        DatastoreCommand::Render(args) => render::run(args),
    }
}
