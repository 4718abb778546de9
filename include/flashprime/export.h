// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Marks what a shared library exports; everything else is hidden.
#define FLASHPRIME_API __attribute__((visibility("default")))
