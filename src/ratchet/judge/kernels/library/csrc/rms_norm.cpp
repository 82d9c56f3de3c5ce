// RMSNorm: norms.h lists the arguments of each entry.
#include "norms.h"

NORM_ENTRY(rms_norm_forward, (forward<false, false>))
NORM_ENTRY(rms_norm_backward, (backward<false, false>))
NORM_ENTRY(add_rms_norm_forward, (forward<false, true>))
NORM_ENTRY(add_rms_norm_backward, (backward<false, true>))
