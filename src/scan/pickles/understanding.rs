//! Which globals and calls of a pickle are understood, so that they are known to create data only.
//!
//! A call is understood where the loader interprets it, or where it has the form of a row in the table of known classes. What
//! later opcodes do to its result must be understood too: see `attributes.rs` for BUILD.

use std::collections::{HashMap, HashSet};

use super::attributes::{Problem, Target};
use super::is_text;
use crate::index::{KnownCalls, PersistentIdForm, known_calls};
use crate::limits::Limits;
use crate::pickle::{Build, Call, CallId, CallKind, GlobalId, Handle, RecoveredPickle, Text, Value, Values};
use crate::scan::known_classes::{self, Form, KnownClass, State};

/// The maximum length, in bytes, of a string that a constructor parses.
const PARSED_TEXT_MAX_BYTES: usize = 4096;
/// The same for a fraction.
const RATIO_MAX_BYTES: usize = 256;
/// How deep tuples and lists of arguments are nested in honest files.
const ARGUMENTS_MAX_DEPTH: u32 = 4;

/// The understood globals and calls of one pickle.
pub(super) struct Understanding<'a> {
    pub(super) values: &'a Values,
    pub(super) known: KnownCalls,
    /// The form of persistent ids.
    ids: PersistentIdForm,
    /// By global id, its row in the table of known classes. Empty where no global has one.
    classes: Vec<Option<KnownClass>>,
    /// By call id, the row of the object that a call makes. Empty where no call makes one.
    objects: Vec<Option<KnownClass>>,
    /// By global id, the rule that calls of it must also follow. Empty where no global has one.
    rules: Vec<Option<Rule>>,
    /// The understood calls whose results get a state that is not understood.
    refused: HashMap<CallId, Problem>,
    /// What is wrong with a state. Any number of BUILDs may share one.
    pub(super) problems: HashMap<(Handle, Target), Option<Problem>>,
    /// Whether a list holds names of weights, or lists of them.
    pub(super) name_lists: HashMap<Handle, bool>,
    /// Whether a tuple or list of arguments has an object of a known class in it.
    with_objects: HashMap<Handle, bool>,
    /// The lengths of strings that encode bytes.
    pub(super) latin1_lengths: HashMap<Handle, u64>,
}

/// What must hold of a call of a global, beyond what the loader checks of its form.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// The fourth argument is a state, which is set on the result (torch/_tensor.py: `_rebuild_from_type_v2`).
    SetsState,
    /// The first argument makes the values of missing keys.
    Factory,
    /// None; it may be a dtype of strings.
    Dtype,
    /// The first two arguments are `ndarray` and `(0,)`.
    Array,
    /// None, for a function of torch.
    Torch,
}

impl<'a> Understanding<'a> {
    pub(super) fn new(
        recovered: &'a RecoveredPickle,
        ids: PersistentIdForm,
        limits: &Limits,
    ) -> Understanding<'a> {
        let values = &recovered.values;
        let known = known_calls(values, ids, limits);
        let mut understanding = Understanding {
            values,
            known,
            ids,
            classes: Vec::new(),
            objects: Vec::new(),
            rules: Vec::new(),
            refused: HashMap::new(),
            problems: HashMap::new(),
            name_lists: HashMap::new(),
            with_objects: HashMap::new(),
            latin1_lengths: HashMap::new(),
        };
        understanding.name_globals();
        understanding.find_objects();
        understanding.check_states();
        understanding
    }

    /// Looks up what is known about each global.
    fn name_globals(&mut self) {
        let count = self.values.globals().len();
        for (id, _) in self.values.globals() {
            let global = self.values.global(id);
            let class = if self.known.is_known_global(id) {
                None
            } else {
                known_classes::lookup(global.module, global.name)
            };
            set(&mut self.classes, count, id.index(), class);
            let rule = match (global.module, global.name) {
                ("torch._tensor" | "torch.tensor", "_rebuild_from_type_v2" | "_rebuild_from_type")
                | ("torch._utils", "_rebuild_parameter_with_state") => Some(Rule::SetsState),
                ("torch._utils" | "torch", _) => Some(Rule::Torch),
                ("collections", "defaultdict") => Some(Rule::Factory),
                ("numpy", "dtype") => Some(Rule::Dtype),
                ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct") => Some(Rule::Array),
                _ => None,
            };
            set(&mut self.rules, count, id.index(), rule);
        }
        // Without objects of known classes, there are none among the arguments of torch's functions.
        if self.classes.is_empty() && self.rules.iter().flatten().all(|&rule| rule == Rule::Torch) {
            self.rules.clear();
        }
    }

    /// Finds the calls that have the form of a known class, in program order: an argument comes before its call.
    fn find_objects(&mut self) {
        if self.classes.is_empty() && self.rules.is_empty() {
            return;
        }
        let count = self.values.calls().len();
        for (id, _) in self.values.calls() {
            if !self.known.is_known_call(id) {
                let object = self.object(&self.values.call(id));
                set(&mut self.objects, count, id.index(), object);
            }
        }
    }

    /// Checks the states of understood calls.
    fn check_states(&mut self) {
        let mut checked = HashSet::new();
        for &Build { target, .. } in self.values.builds() {
            let Value::Call(id) = self.values.get(target) else { continue };
            if !checked.insert(id) {
                continue;
            }
            let call = self.values.call(id);
            let target = match self.object_of(id) {
                Some(object) => Target::Object(object.state),
                None if !self.known.is_known_call(id) => continue,
                None => Target::Loader,
            };
            let problem = call.states.iter().find_map(|state| self.problem_of(state.value, target));
            self.refused.extend(problem.map(|problem| (id, problem)));
        }
    }

    /// Whether a global is understood. A call of it may still be in a form that is not.
    pub(super) fn knows_global(&self, id: GlobalId) -> bool {
        self.known.is_known_global(id) || self.class(id).is_some()
    }

    /// Whether a call is understood; its states are a matter of [`refused`](Understanding::refused).
    pub(super) fn knows_call(&mut self, id: CallId, call: &Call<'_>, callee: Option<GlobalId>) -> bool {
        // Most calls of a checkpoint.
        let is_plain = call.items.is_empty() && call.appended.is_empty() && self.rules.is_empty();
        if is_plain && self.known.is_known_call(id) {
            return true;
        }
        let has_form = if self.known.is_known_call(id) {
            let rule = callee.and_then(|callee| self.rules.get(callee.index()).copied().flatten());
            rule.is_none_or(|rule| self.follows(rule, call))
                && (rule.is_none_or(|rule| rule == Rule::Factory) || !self.has_object_arguments(rule, call))
        } else {
            self.object_of(id).is_some()
        };
        has_form && self.known.takes_items(id, call)
    }

    /// Whether a BUILD of `target` is understood.
    pub(super) fn knows_build(&self, target: Handle) -> bool {
        let Value::Call(id) = self.values.get(target) else { return false };
        (self.known.is_known_call(id) || self.object_of(id).is_some()) && self.refused(id).is_none()
    }

    /// What is wrong with the states of an understood call.
    pub(super) fn refused(&self, id: CallId) -> Option<Problem> {
        self.refused.get(&id).copied()
    }

    /// The global that a call calls, also through the `('module', class, file, source)` of a legacy stream; `None` where the
    /// callable is no global.
    pub(super) fn callee(&self, call: &Call<'_>) -> Option<GlobalId> {
        match self.values.get(call.callable) {
            Value::Global(id) => Some(id),
            Value::PersistentId(pid) => self.module_class(pid),
            _ => None,
        }
    }

    /// The class in a persistent id `('module', class, file, source)`, or in torch 0.1 `(class, file, source)`.
    pub(super) fn module_class(&self, pid: Handle) -> Option<GlobalId> {
        let class = match self.values.get(pid) {
            Value::Tuple(&[class, ..]) if self.ids == PersistentIdForm::Keyed => class,
            Value::Tuple(&[tag, class, ..]) if is_text(self.values, tag, "module") => class,
            _ => return None,
        };
        match self.values.get(class) {
            Value::Global(id) => Some(id),
            _ => None,
        }
    }

    /// The row of a global in the table of known classes.
    pub(super) fn class(&self, id: GlobalId) -> Option<KnownClass> {
        self.classes.get(id.index()).copied().flatten()
    }

    /// The row of the object that a call makes.
    pub(super) fn object_of(&self, id: CallId) -> Option<KnownClass> {
        self.objects.get(id.index()).copied().flatten()
    }

    fn follows(&mut self, rule: Rule, call: &Call<'_>) -> bool {
        let Value::Tuple(args) = self.values.get(call.args) else { return false };
        match (rule, args) {
            (Rule::SetsState, &[_, _, inner, state]) => {
                // The arguments of the inner function may have a state, too.
                let inner = match self.values.get(inner) {
                    Value::Tuple(&[_, _, _, state]) => self.problem_of(state, Target::Loader),
                    _ => None,
                };
                inner.is_none() && self.problem_of(state, Target::Loader).is_none()
            }
            (Rule::Factory, &[factory, ..]) => match self.values.get(factory) {
                Value::Call(_) | Value::PersistentId(_) => !self.may_be_called(factory),
                _ => true,
            },
            (Rule::Array, _) => self.is_empty_array(call),
            (Rule::SetsState, _) => false,
            (Rule::Factory | Rule::Dtype | Rule::Torch, _) => true,
        }
    }

    /// Whether objects of known classes are among the arguments of a function of torch or NumPy, which looks up attributes of what
    /// it gets. `torch.nn.Module` finds attributes in dicts of its own (`__getattr__`), whose values may be functions.
    fn has_object_arguments(&mut self, rule: Option<Rule>, call: &Call<'_>) -> bool {
        if self.objects.is_empty() {
            return false;
        }
        let Value::Tuple(args) = self.values.get(call.args) else { return false };
        // The fourth argument is a state, whose attributes are stored.
        let is_state = |at: usize| rule == Some(Rule::SetsState) && at == 3;
        args.iter().enumerate().any(|(at, &arg)| !is_state(at) && self.holds_object(arg, ARGUMENTS_MAX_DEPTH))
    }

    /// Whether a value is an object of a known class, or a tuple or list with one in it. True also where it is nested too deep.
    fn holds_object(&mut self, value: Handle, depth: u32) -> bool {
        match self.values.get(value) {
            Value::Call(id) => self.object_of(id).is_some_and(|object| object.state != State::Checked),
            Value::Tuple(items) | Value::List(items) if !items.is_empty() => {
                if let Some(&holds) = self.with_objects.get(&value) {
                    return holds;
                }
                let holds =
                    depth == 0 || items.iter().any(|&item| self.holds_object(item, depth.saturating_sub(1)));
                self.with_objects.insert(value, holds);
                holds
            }
            _ => false,
        }
    }

    /// Whether the arguments of `_reconstruct` are those of an array without elements: its state brings them.
    pub(super) fn is_empty_array(&self, call: &Call<'_>) -> bool {
        let Value::Tuple(&[class, shape, _]) = self.values.get(call.args) else { return false };
        let is_empty = match self.values.get(shape) {
            Value::Tuple(&[length]) => matches!(self.values.get(length), Value::Int(0)),
            _ => false,
        };
        is_empty && self.is_named(class, "numpy", "ndarray")
    }

    /// Whether a value is an understood dtype of NumPy.
    pub(super) fn is_dtype(&self, handle: Handle) -> bool {
        let Value::Call(id) = self.values.get(handle) else { return false };
        let is_understood = self.known.is_known_call(id) || self.object_of(id).is_some();
        is_understood
            && self.refused(id).is_none()
            && self.is_named(self.values.call(id).callable, "numpy", "dtype")
    }

    /// The row of the object that a call makes, if it has the form that the row states.
    fn object(&mut self, call: &Call<'_>) -> Option<KnownClass> {
        let callee = self.callee(call)?;
        let Value::Tuple(args) = self.values.get(call.args) else { return None };
        let called = matches!(call.kind, CallKind::Reduce | CallKind::Inst | CallKind::Obj);
        let Some(class) = self.class(callee) else {
            let checked = KnownClass { form: Form::Name, state: State::Checked, callable: false };
            return match self.rules.get(callee.index()).copied().flatten() {
                Some(Rule::Dtype) if called => self.is_text_dtype(call).then_some(checked),
                Some(Rule::Array) if called => self.is_text_array(call).then_some(checked),
                _ => None,
            };
        };
        let has_form = match (class.form, args) {
            (Form::New, []) => call.kind == CallKind::NewObj,
            (Form::NewText, &[text]) => call.kind == CallKind::NewObj && self.text(text).is_some(),
            (Form::Rebuild, &[class, base, state]) if called => return self.rebuilt(class, base, state),
            (form, args) => called && self.has_form(form, args),
        };
        has_form.then_some(class)
    }

    /// The row of the class in `_reconstructor(class, base, state)`, which protocols 0 and 1 have in place of NEWOBJ.
    fn rebuilt(&self, class: Handle, base: Handle, state: Handle) -> Option<KnownClass> {
        let Value::Global(class) = self.values.get(class) else { return None };
        self.class(class).filter(|class| match class.form {
            Form::New => {
                self.is_named(base, "builtins", "object") && matches!(self.values.get(state), Value::None)
            }
            Form::NewText => self.is_named(base, "builtins", "str") && self.text(state).is_some(),
            _ => false,
        })
    }

    /// Whether the arguments of a call have the form.
    fn has_form(&self, form: Form, args: &[Handle]) -> bool {
        let is_int = |handle| matches!(self.values.get(handle), Value::Int(_) | Value::BigInt(_));
        let is_number = |handle| is_int(handle) || matches!(self.values.get(handle), Value::Float(_));
        match (form, args) {
            (Form::Call, []) => true,
            (Form::Text, &[text]) => self.text(text).is_some(),
            (Form::Texts, texts) => texts.iter().all(|&text| self.text(text).is_some()),
            (Form::Address, &[address]) => is_int(address) || self.text(address).is_some(),
            (Form::Ratio, &[ratio]) => self.text(ratio).is_some_and(|text| {
                let text = text.as_bytes();
                text.len() <= RATIO_MAX_BYTES
                    && text.iter().all(|byte| byte.is_ascii_digit() || matches!(byte, b'-' | b'/'))
            }),
            (Form::Ratio, &[numerator, denominator]) => is_int(numerator) && is_int(denominator),
            (Form::Numbers, &[_] | &[_, _] | &[_, _, _]) => args.iter().all(|&arg| is_number(arg)),
            (Form::Clock, &[bytes]) => self.is_clock(bytes),
            (Form::Clock, &[bytes, zone]) => self.is_clock(bytes) && self.is_object(zone, Form::Timezone),
            (Form::Timezone, &[offset]) => self.is_object(offset, Form::Numbers),
            (Form::Timezone, &[offset, name]) => {
                self.is_object(offset, Form::Numbers) && self.text(name).is_some()
            }
            (Form::Member, &[value]) => match self.values.get(value) {
                Value::None | Value::Bool(_) | Value::Int(_) | Value::Float(_) => true,
                _ => self.text(value).is_some(),
            },
            (Form::Identity, &[_]) => true,
            (Form::Identity, &[_, kind]) => self.text(kind).is_some(),
            (Form::Buffer, &[class, typecode, format, bytes]) => {
                self.is_named(class, "array", "array")
                    && self.text(typecode).is_some_and(|typecode| typecode.as_bytes().len() == 1)
                    && matches!(self.values.get(format), Value::Int(_))
                    && self.is_literal_bytes(bytes)
            }
            _ => false,
        }
    }

    fn is_object(&self, handle: Handle, form: Form) -> bool {
        match self.values.get(handle) {
            Value::Call(id) => self.object_of(id).is_some_and(|object| object.form == form),
            _ => false,
        }
    }

    /// Whether a value is what a pickle holds of a date or time: a few bytes, as Python 2 or 3 writes them.
    fn is_clock(&self, handle: Handle) -> bool {
        match self.values.get(handle) {
            Value::Str(text) => text.as_bytes().len() <= 32,
            _ => self.is_literal_bytes(handle),
        }
    }

    /// Whether a value is bytes that stand in the pickle: a bytes object, or `_codecs.encode(text, 'latin1')`.
    pub(super) fn is_literal_bytes(&self, handle: Handle) -> bool {
        match self.values.get(handle) {
            Value::Bytes(_) => true,
            Value::Call(id) => {
                let call = self.values.call(id);
                self.known.is_bytes(id) && call.states.is_empty() && call.kind == CallKind::Reduce
            }
            _ => false,
        }
    }

    /// A string, unless it is too long for a constructor that parses it.
    pub(super) fn text(&self, handle: Handle) -> Option<Text<'a>> {
        match self.values.get(handle) {
            Value::Str(text) => Some(text).filter(|text| text.as_bytes().len() <= PARSED_TEXT_MAX_BYTES),
            _ => None,
        }
    }

    pub(super) fn is_named(&self, handle: Handle, module: &str, name: &str) -> bool {
        match self.values.get(handle) {
            Value::Global(id) => {
                let global = self.values.global(id);
                (global.module, global.name) == (module, name)
            }
            _ => false,
        }
    }
}

/// Sets an item of a list that is filled only where there is any.
fn set<T: Copy>(list: &mut Vec<Option<T>>, len: usize, at: usize, value: Option<T>) {
    if value.is_some() {
        if list.is_empty() {
            list.resize(len, None);
        }
        if let Some(slot) = list.get_mut(at) {
            *slot = value;
        }
    }
}
