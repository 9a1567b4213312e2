//! The policies in the cluster: looked at, set, retired, removed. Each write may be the last one before a crash.
//!
//! A policy denies nothing without its binding, and a binding nothing without its policy. So the policy is made first and
//! the binding last: until then nobody is refused, and [`Freeze::observe`] says what is missing. The binding is removed
//! first: with it the refusals end, and what is left is inert and has our label, so that the next removal finds it.

use std::collections::BTreeMap;

use exuvia_api::{DATASTORE_LABEL, RETIRED_ANNOTATION, RETIRED_FLAGS_ANNOTATION};
use exuvia_write::{Adopted, Delete, Deleted, ErrorClass, RetryPolicy, Writable, Writer};
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy as Policy, ValidatingAdmissionPolicyBinding as Binding,
};
use kube::api::ListParams;
use kube::{Api, Client, Resource, ResourceExt};

use super::error::Error;
use super::flags::{self, RetiredFlag, restore_when_free};
use super::policy::{FIELD_MANAGER, Form, Part, Scope};
use super::{Freeze, flow};

/// How one object of ours stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// It does not exist.
    Absent,
    /// It is as it must be.
    AsWanted,
    /// It is ours, and differs: of another form, or changed by somebody.
    Changed,
    /// An object of its name exists that is not ours.
    Foreign,
    /// It is being deleted, and held.
    Leaving,
}

/// How policy and binding of one part stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartState {
    /// The policy.
    pub policy: Piece,
    /// The binding. Without it the policy denies nothing.
    pub binding: Piece,
}

/// How the policies stand, compared with what is wanted. That they are there does not say that a server denies: see
/// [`Freeze::probe`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// The parts that are wanted.
    pub parts: BTreeMap<Part, PartState>,
    /// Objects of ours that are not wanted: kind and name.
    pub left_over: Vec<String>,
    /// Whether something of ours says that it outlives its migration.
    pub is_retired: bool,
}

impl Observed {
    /// Whether everything wanted is there as it must be, and nothing else of ours is.
    pub fn is_as_wanted(&self) -> bool {
        let as_wanted = PartState {
            policy: Piece::AsWanted,
            binding: Piece::AsWanted,
        };
        self.left_over.is_empty() && self.parts.values().all(|state| *state == as_wanted)
    }

    /// The parts that are not as wanted, with the reason.
    pub fn troubles(&self) -> impl Iterator<Item = (Part, PartState)> + '_ {
        let whole = |state: &PartState| state.policy == Piece::AsWanted && state.binding == Piece::AsWanted;
        self.parts
            .iter()
            .filter(move |(_, state)| !whole(state))
            .map(|(part, state)| (*part, *state))
    }
}

/// What policy and binding have in common.
pub(super) trait Lock: Writable<DynamicType = ()> + std::fmt::Debug + PartialEq {
    const WHAT: &'static str;

    fn has_spec_of(&self, other: &Self) -> bool;
    fn take_spec_of(&mut self, other: &Self);
}

impl Lock for Policy {
    const WHAT: &'static str = "ValidatingAdmissionPolicy";

    fn has_spec_of(&self, other: &Self) -> bool {
        self.spec == other.spec
    }

    fn take_spec_of(&mut self, other: &Self) {
        self.spec.clone_from(&other.spec);
    }
}

impl Lock for Binding {
    const WHAT: &'static str = "ValidatingAdmissionPolicyBinding";

    fn has_spec_of(&self, other: &Self) -> bool {
        self.spec == other.spec
    }

    fn take_spec_of(&mut self, other: &Self) {
        self.spec.clone_from(&other.spec);
    }
}

/// The policies and bindings of a cluster that carry a name of ours, our label or our field manager, as they were at one look.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    policies: Seen<Policy>,
    bindings: Seen<Binding>,
}

#[derive(Clone, Debug)]
struct Seen<K> {
    ours: Vec<K>,
    /// Names of ours that somebody else uses.
    foreign: Vec<String>,
}

impl<K> Default for Seen<K> {
    fn default() -> Self {
        Self {
            ours: Vec::new(),
            foreign: Vec::new(),
        }
    }
}

impl Standing {
    /// Name, uid and generation of each policy and binding of ours but the shield, which comes and goes by itself: another
    /// uid is another lock, and another generation may have let writes pass.
    pub fn identities(&self) -> Vec<(String, String, Option<i64>)> {
        let policies = self.policies.ours.iter().map(Resource::meta);
        let bindings = self.bindings.ours.iter().map(Resource::meta);
        let mut locks: Vec<_> = policies
            .chain(bindings)
            .map(|meta| {
                let meta = meta.clone();
                (
                    meta.name.unwrap_or_default(),
                    meta.uid.unwrap_or_default(),
                    meta.generation,
                )
            })
            .filter(|(name, ..)| !name.ends_with(Part::Shield.as_str()))
            .collect();
        locks.sort();
        locks
    }
}

impl Freeze {
    /// How the policies stand, compared with this form.
    pub async fn observe(&self, form: Form, shield: bool) -> Result<Observed, Error> {
        Ok(self.compare(&self.look().await?, form, shield))
    }

    /// Reads what is there of ours: two requests.
    pub async fn look(&self) -> Result<Standing, Error> {
        Ok(Standing {
            policies: self.all().await?,
            bindings: self.all().await?,
        })
    }

    /// How what was read stands, compared with this form.
    pub fn compare(&self, standing: &Standing, form: Form, shield: bool) -> Observed {
        let Standing { policies, bindings } = standing;
        let mut observed = Observed::default();
        for part in self.scope.parts(form, shield) {
            let (policy, binding) = self.scope.objects(part, form);
            let state = PartState {
                policy: policies.piece(&policy),
                binding: bindings.piece(&binding),
            };
            observed.parts.insert(part, state);
        }
        let wanted: Vec<String> = observed.parts.keys().map(|part| self.scope.name(*part)).collect();
        let left_over = policies.left_over(&wanted).chain(bindings.left_over(&wanted));
        observed.left_over = left_over.collect();
        observed.is_retired = policies.ours.iter().any(is_retired) || bindings.ours.iter().any(is_retired);
        observed
    }

    /// Makes the policies as this form wants them: what is missing is made, what differs is changed, what is too much is
    /// removed. It may be repeated, and does nothing then. Nobody may rely on it before [`probe`](Self::probe) says so.
    pub async fn set(&self, form: Form, shield: bool) -> Result<(), Error> {
        let wanted = self.scope.parts(form, shield);
        for part in &wanted {
            let (policy, binding) = self.scope.objects(*part, form);
            self.ensure(&policy).await?;
            self.ensure(&binding).await?;
        }
        let is_wanted = |name: &str| wanted.iter().any(|part| self.scope.name(*part) == name);
        self.remove_locks(|name| !is_wanted(name)).await
    }

    /// Sets the shield alone, or removes it alone: the other parts stay as they are.
    pub async fn set_shield(&self, is_up: bool) -> Result<(), Error> {
        let name = self.scope.name(Part::Shield);
        if !is_up {
            return self.remove_locks(|other| other == name).await;
        }
        let (policy, binding) = self.scope.objects(Part::Shield, Form::Frozen);
        self.ensure(&policy).await?;
        self.ensure(&binding).await
    }

    /// Removes all policies and bindings of this migration, and what counts its writers. It may be repeated.
    pub async fn remove(&self) -> Result<(), Error> {
        self.remove_locks(|_| true).await?;
        flow::remove(&self.client, &self.writer, &self.scope).await
    }

    /// As [`remove`](Self::remove), but the shield stays.
    pub async fn remove_but_shield(&self) -> Result<(), Error> {
        let shield = self.scope.name(Part::Shield);
        self.remove_locks(|name| name != shield).await?;
        flow::remove(&self.client, &self.writer, &self.scope).await
    }

    /// The source stays frozen in its Converged form, and says whose it was, and what flags that stay frozen were: [`thaw`]
    /// finds it. Everything else is removed.
    pub async fn retire(&self, flags: &[RetiredFlag]) -> Result<(), Error> {
        let (policy, binding) = self.scope.objects(Part::Source, Form::Converged);
        if !self.scope.source.is_empty() {
            self.ensure(&policy).await?;
            self.ensure(&binding).await?;
            self.mark_retired(&policy, flags).await?;
            self.mark_retired(&binding, &[]).await?;
        }
        let source = self.scope.name(Part::Source);
        self.remove_locks(|name| name != source).await?;
        flow::remove(&self.client, &self.writer, &self.scope).await
    }

    /// Which policy and binding freeze the source: by uid and generation. Others, or the same changed and changed back, may
    /// have let writes pass in between.
    pub(super) async fn source_locks(&self) -> Result<Vec<(String, i64)>, Error> {
        let name = self.scope.name(Part::Source);
        let policy = get::<Policy>(&self.client, &name).await?;
        let binding = get::<Binding>(&self.client, &name).await?;
        let metadata = [
            policy.map(|policy| policy.metadata),
            binding.map(|binding| binding.metadata),
        ];
        let identity = metadata.into_iter().flatten();
        Ok(identity
            .map(|meta| (meta.uid.unwrap_or_default(), meta.generation.unwrap_or_default()))
            .collect())
    }

    /// One list of everything: a list of what has our label would miss those that lost it, and there are few in any cluster.
    async fn all<K: Lock>(&self) -> Result<Seen<K>, Error> {
        let names = Part::ALL.map(|part| self.scope.name(part));
        let mut seen = Seen::default();
        for lock in listed::<K>(&self.client, "").await? {
            let has_label = lock.labels().get(DATASTORE_LABEL) == Some(&self.scope.uid);
            let has_name = names.contains(&lock.name_any());
            if has_label || (has_name && is_ours(&lock, &self.scope)) {
                seen.ours.push(lock);
            } else if has_name {
                seen.foreign.push(lock.name_any());
            }
        }
        Ok(seen)
    }

    async fn ensure<K: Lock>(&self, wanted: &K) -> Result<(), Error> {
        let api: Api<K> = Api::all(self.client.clone());
        let live = if let Some(live) = get::<K>(&self.client, &wanted.name_any()).await? {
            live
        } else {
            let is_ours = |found: &K| is_ours(found, &self.scope);
            match self.writer.create_or_adopt(&api, wanted, is_ours).await {
                Ok(Adopted::Created(_)) => return Ok(()),
                Ok(Adopted::Existing(live)) => live,
                Err(exuvia_write::Error::Foreign { .. }) => return Err(foreign(wanted)),
                Err(error) => return Err(error.into()),
            }
        };
        if !is_ours(&live, &self.scope) {
            return Err(foreign(wanted));
        }
        if live.meta().deletion_timestamp.is_some() {
            return Err(leaving(wanted));
        }
        self.writer
            .patch_with_retry(&api, &live, |live| {
                live.take_spec_of(wanted);
                let label = (DATASTORE_LABEL.to_owned(), self.scope.uid.clone());
                live.labels_mut().extend([label]);
            })
            .await?;
        Ok(())
    }

    async fn mark_retired<K: Lock>(&self, wanted: &K, flags: &[RetiredFlag]) -> Result<(), Error> {
        let api: Api<K> = Api::all(self.client.clone());
        let name = wanted.name_any();
        let Some(live) = get::<K>(&self.client, &name).await? else {
            return Ok(()); // somebody has just deleted it: the next look says so
        };
        if !is_ours(&live, &self.scope) {
            return Err(foreign(wanted));
        }
        let mark = |live: &mut K| {
            let migration = self.scope.migration.clone();
            live.annotations_mut()
                .insert(RETIRED_ANNOTATION.to_owned(), migration);
            if !flags.is_empty() {
                live.annotations_mut()
                    .insert(RETIRED_FLAGS_ANNOTATION.to_owned(), flags::noted(flags));
            }
        };
        self.writer.patch_with_retry(&api, &live, mark).await?;
        Ok(())
    }

    /// Bindings first, the source's before the others': the writers who wait longest are let go first.
    async fn remove_locks(&self, is_unwanted: impl Fn(&str) -> bool) -> Result<(), Error> {
        let mut bindings = self.all::<Binding>().await?.ours;
        let source = self.scope.name(Part::Source);
        bindings.sort_by_key(|binding| binding.name_any() != source);
        bindings.retain(|binding| is_unwanted(&binding.name_any()));
        delete_all(&self.client, &self.writer, &bindings).await?;
        let mut policies = self.all::<Policy>().await?.ours;
        policies.retain(|policy| is_unwanted(&policy.name_any()));
        delete_all(&self.client, &self.writer, &policies).await
    }
}

/// Removes what [`Freeze::retire`] left of the migration of this name, and says how many objects that were. Flags get the
/// values that they have when writers may write. A migration whose own policies are not marked is left alone.
pub async fn thaw(client: &Client, writer: &Writer, migration: &str) -> Result<usize, Error> {
    let policies = listed::<Policy>(client, DATASTORE_LABEL).await?;
    let bindings = listed::<Binding>(client, DATASTORE_LABEL).await?;
    let policies = retired_from(policies, migration);
    let bindings = retired_from(bindings, migration);
    // The flags may be on objects of the source, which the policies protect. Without bindings they refuse nothing, and still
    // know of the flags.
    delete_all(client, writer, &bindings).await?;
    for policy in &policies {
        for RetiredFlag { flag, saved } in retired_flags(policy)? {
            match restore_when_free(client, writer, &flag, &saved).await {
                // An object that is gone holds nobody.
                Err(error) if matches!(error.class(), ErrorClass::Gone | ErrorClass::Missing) => {}
                restored => drop(restored?),
            }
        }
    }
    delete_all(client, writer, &policies).await?;
    Ok(policies.len() + bindings.len())
}

fn retired_flags(policy: &Policy) -> Result<Vec<RetiredFlag>, Error> {
    let Some(noted) = policy.annotations().get(RETIRED_FLAGS_ANNOTATION) else {
        return Ok(Vec::new());
    };
    serde_json::from_str(noted).map_err(|_| Error::Unreadable {
        what: format!("{} {}", Policy::WHAT, policy.name_any()),
        annotation: RETIRED_FLAGS_ANNOTATION,
    })
}

fn retired_from<K: Lock>(mut locks: Vec<K>, migration: &str) -> Vec<K> {
    locks.retain(|lock| {
        lock.annotations()
            .get(RETIRED_ANNOTATION)
            .is_some_and(|of| of == migration)
    });
    locks
}

impl<K: Lock> Seen<K> {
    fn piece(&self, wanted: &K) -> Piece {
        let name = wanted.name_any();
        match self.ours.iter().find(|live| live.name_any() == name) {
            Some(live) => piece_of(live, wanted),
            None if self.foreign.contains(&name) => Piece::Foreign,
            None => Piece::Absent,
        }
    }

    /// Kind and name of each that is not wanted.
    fn left_over(&self, wanted: &[String]) -> impl Iterator<Item = String> {
        let names = self.ours.iter().map(ResourceExt::name_any);
        names
            .filter(|name| !wanted.contains(name))
            .map(|name| format!("{} {name}", K::WHAT))
    }
}

fn piece_of<K: Lock>(live: &K, wanted: &K) -> Piece {
    if live.meta().deletion_timestamp.is_some() {
        Piece::Leaving
    } else if live.has_spec_of(wanted)
        && live.labels().get(DATASTORE_LABEL) == wanted.labels().get(DATASTORE_LABEL)
    {
        Piece::AsWanted
    } else {
        Piece::Changed
    }
}

/// By the label, or by our field manager: an object of ours that lost its label must not stay for ever.
pub(super) fn is_ours(object: &impl Resource, scope: &Scope) -> bool {
    let meta = object.meta();
    let labels = meta.labels.as_ref();
    let mut entries = meta.managed_fields.iter().flatten();
    labels.is_some_and(|labels| labels.get(DATASTORE_LABEL) == Some(&scope.uid))
        || entries.any(|entry| entry.manager.as_deref() == Some(FIELD_MANAGER))
}

pub(super) fn is_retired(object: &impl Resource) -> bool {
    object
        .meta()
        .annotations
        .as_ref()
        .is_some_and(|annotations| annotations.contains_key(RETIRED_ANNOTATION))
}

fn foreign<K: Lock>(wanted: &K) -> Error {
    Error::Foreign {
        what: format!("{} {}", K::WHAT, wanted.name_any()),
    }
}

fn leaving<K: Lock>(wanted: &K) -> Error {
    Error::Leaving {
        what: format!("{} {}", K::WHAT, wanted.name_any()),
    }
}

/// A 404 to a list: the kind is not served.
fn unread<K: Lock>(what: String) -> impl FnOnce(kube::Error) -> Error {
    move |error| match ErrorClass::of(&error) {
        ErrorClass::Missing => Error::NoPolicies,
        _ => Error::read(what)(error),
    }
}

/// Those that the selector chooses; all, if it is empty.
pub(super) async fn listed<K: Lock>(client: &Client, selector: &str) -> Result<Vec<K>, Error> {
    let api: Api<K> = Api::all(client.clone());
    let of_us = ListParams::default().labels(selector);
    let list = RetryPolicy::default().read(|| api.list(&of_us)).await;
    Ok(list
        .map_err(unread::<K>(format!("the list of {}", K::WHAT)))?
        .items)
}

async fn get<K: Lock>(client: &Client, name: &str) -> Result<Option<K>, Error> {
    let api: Api<K> = Api::all(client.clone());
    let live = RetryPolicy::default().read(|| api.get_opt(name)).await;
    live.map_err(unread::<K>(format!("{} {name}", K::WHAT)))
}

pub(super) async fn delete_all<K: Lock>(client: &Client, writer: &Writer, locks: &[K]) -> Result<(), Error> {
    let api: Api<K> = Api::all(client.clone());
    for lock in locks {
        if let Deleted::Going(_) = writer.delete(&api, lock, &Delete::default()).await? {
            return Err(leaving(lock));
        }
    }
    Ok(())
}
