# SPDX-License-Identifier: Apache-2.0
"""FlashPrime behind the interfaces of transformers, vLLM and SGLang. None is imported here."""
