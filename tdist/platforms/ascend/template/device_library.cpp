// tdist's device library: what a kernel's `hivm.hir.custom` calls link to. Built once for each kind of core (build.py)
// to bitcode that the vendor's compiler links in.
//
// Checked for syntax and against the symbol table with stub headers; never built or run on a device.
//
// SPDX-License-Identifier: Apache-2.0

#include "identity.h"
#include "order.h"
#include "signals.h"
#include "tokens.h"
#include "transfers.h"

// One line a function and element type, from tdist/platforms/ascend/symbols.py.
#include "instances.inc"
