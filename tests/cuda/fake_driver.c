/* The driver's calls on the memory of the host; its one kernel doubles floats. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long pointer;
typedef struct { pointer from, to; size_t count; } work;
static int capturing, launches;
static work captured[16], *graph;
static int number;

static void run(work w) {
    for (size_t i = 0; i < w.count; ++i) ((float *)w.to)[i] = 2 * ((float *)w.from)[i];
    ++launches;
}
int cuInit(unsigned flags) { return flags != 0; }
int cuDeviceGet(int *device, int index) { *device = 7; return index != 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &capturing; return device != 7; }
int cuCtxSetCurrent(void *context) { return context != &capturing; }
int cuCtxSynchronize(void) { return 0; }
int cuStreamCreate(void **stream, unsigned flags) { *stream = &launches; return flags != 1; }
int cuEventCreate(void **event, unsigned flags) { *event = malloc(1); return flags != 0; }
int cuDeviceGetName(char *name, int length, int device) { strncpy(name, "no GPU", (size_t)length); return device != 7; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = attribute == 75 ? 9 : 0; return device != 7; }
int cuModuleLoadData(void **module, const char *data) { *module = &captured; return strcmp(data, "code") != 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
    *function = &run;
    return module != (void *)&captured || strcmp(name, "twice") ? 500 : 0;
}
int cuFuncSetAttribute(void *function, int attribute, int value) { return attribute != 8 || value < 49152; }
int cuMemAlloc_v2(pointer *memory, size_t bytes) {
    if (bytes > ((size_t)1 << 40)) return 2;
    *memory = (pointer)malloc(bytes);
    return 0;
}
int cuMemsetD8_v2(pointer memory, unsigned char value, size_t bytes) { memset((void *)memory, value, bytes); return 0; }
int cuMemFree_v2(pointer memory) { free((void *)memory); return 0; }
int cuMemcpyHtoD_v2(pointer to, const void *from, size_t bytes) { memcpy((void *)to, from, bytes); return 0; }
int cuMemcpyDtoH_v2(void *to, pointer from, size_t bytes) { memcpy(to, (void *)from, bytes); return 0; }
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned x, unsigned y, unsigned z,
                   unsigned shared, void *stream, void **arguments, void **extra) {
    work w = {*(pointer *)arguments[0], *(pointer *)arguments[1], (size_t)gx * gy * gz * x * y * z};
    if (function != (void *)&run || stream != &launches || extra || shared) return 1;
    if (capturing) captured[number++] = w; else run(w);
    return 0;
}
int cuStreamBeginCapture_v2(void *stream, int mode) { capturing = 1; number = 0; return stream != &launches || mode; }
int cuStreamEndCapture(void *stream, void **result) { capturing = 0; *result = captured; return stream != &launches; }
int cuGraphInstantiateWithFlags(void **result, void *from, unsigned long long flags) {
    *result = graph = from;
    return flags != 0;
}
int cuGraphLaunch(void *which, void *stream) {
    if (which != (void *)graph || stream != &launches) return 1;
    for (int i = 0; i < number; ++i) run(graph[i]);
    return 0;
}
int cuEventRecord(void *event, void *stream) { return !event || stream != &launches; }
int cuEventSynchronize(void *event) { return !event; }
int cuEventElapsedTime(float *milliseconds, void *begin, void *end) { *milliseconds = 0.25f * launches; return begin == end; }
int cuGraphExecDestroy(void *which) { return which != (void *)graph; }
int cuGraphDestroy(void *which) { return which != (void *)captured; }
int cuGetErrorName(int code, const char **name) { *name = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OTHER"; return 0; }
